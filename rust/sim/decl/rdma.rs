// SPDX-License-Identifier: GPL-2.0
// Declarations for the simulated driver, in place of the bindings of `include/ro2iblnd_bindings.h`
// in `crate::bindings`. Included twice, by the driver and by the simulated C, which therefore agree
// about every type.

pub const ib_event_type_IB_EVENT_QP_FATAL: ib_event_type = 1;
pub const ib_event_type_IB_EVENT_QP_REQ_ERR: ib_event_type = 2;
pub const ib_event_type_IB_EVENT_QP_ACCESS_ERR: ib_event_type = 3;
pub const ib_event_type_IB_EVENT_COMM_EST: ib_event_type = 4;
pub const ib_event_type_IB_EVENT_SQ_DRAINED: ib_event_type = 5;
pub const ib_event_type_IB_EVENT_PATH_MIG: ib_event_type = 6;
pub const ib_event_type_IB_EVENT_PATH_MIG_ERR: ib_event_type = 7;
pub const ib_event_type_IB_EVENT_DEVICE_FATAL: ib_event_type = 8;
pub const ib_event_type_IB_EVENT_PORT_ACTIVE: ib_event_type = 9;
pub const ib_event_type_IB_EVENT_PORT_ERR: ib_event_type = 10;
pub const ib_event_type_IB_EVENT_LID_CHANGE: ib_event_type = 11;
pub const ib_event_type_IB_EVENT_PKEY_CHANGE: ib_event_type = 12;
pub const ib_event_type_IB_EVENT_SM_CHANGE: ib_event_type = 13;
pub const ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED: ib_event_type = 16;
pub const ib_event_type_IB_EVENT_CLIENT_REREGISTER: ib_event_type = 17;
pub const ib_event_type_IB_EVENT_GID_CHANGE: ib_event_type = 18;

pub type ib_event_type = u32;

#[repr(C)]
pub struct ro2ib_cq {
    _unused: [u8; 0],
}

#[repr(C)]
pub struct ro2ib_rcu_map {
    _unused: [u8; 0],
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ro2ib_debugfs_file {
    pub show:
        ::core::option::Option<unsafe extern "C" fn(seq: *mut seq_file, data: *mut c_void) -> i32>,
    pub data: *mut c_void,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ib_event {
    pub device: *mut ib_device,
    pub element: ib_event__bindgen_ty_1,
    pub event: ib_event_type,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub union ib_event__bindgen_ty_1 {
    pub cq: *mut ib_cq,
    pub qp: *mut ib_qp,
    pub srq: *mut ib_srq,
    pub wq: *mut ib_wq,
    pub port_num: u32,
}

#[repr(C)]
#[derive(MaybeZeroable)]
pub struct ib_event_handler {
    pub device: *mut ib_device,
    pub handler: Option<unsafe extern "C" fn(arg1: *mut ib_event_handler, arg2: *mut ib_event)>,
    pub list: list_head,
}

pub const ib_wc_status_IB_WC_SUCCESS: ib_wc_status = 0;
pub const ib_wc_status_IB_WC_LOC_LEN_ERR: ib_wc_status = 1;
pub const ib_wc_status_IB_WC_LOC_QP_OP_ERR: ib_wc_status = 2;
pub const ib_wc_status_IB_WC_LOC_PROT_ERR: ib_wc_status = 4;
pub const ib_wc_status_IB_WC_WR_FLUSH_ERR: ib_wc_status = 5;
pub const ib_wc_status_IB_WC_BAD_RESP_ERR: ib_wc_status = 7;
pub const ib_wc_status_IB_WC_LOC_ACCESS_ERR: ib_wc_status = 8;
pub const ib_wc_status_IB_WC_REM_INV_REQ_ERR: ib_wc_status = 9;
pub const ib_wc_status_IB_WC_REM_ACCESS_ERR: ib_wc_status = 10;
pub const ib_wc_status_IB_WC_REM_OP_ERR: ib_wc_status = 11;
pub const ib_wc_status_IB_WC_RETRY_EXC_ERR: ib_wc_status = 12;
pub const ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR: ib_wc_status = 13;
pub const ib_wc_status_IB_WC_REM_ABORT_ERR: ib_wc_status = 16;
pub const ib_wc_status_IB_WC_FATAL_ERR: ib_wc_status = 19;
pub const ib_wc_status_IB_WC_RESP_TIMEOUT_ERR: ib_wc_status = 20;
pub const ib_wc_status_IB_WC_GENERAL_ERR: ib_wc_status = 21;

pub type ib_wc_status = u32;

pub const ib_wc_opcode_IB_WC_SEND: ib_wc_opcode = 0;
pub const ib_wc_opcode_IB_WC_RDMA_WRITE: ib_wc_opcode = 1;
pub const ib_wc_opcode_IB_WC_LOCAL_INV: ib_wc_opcode = 6;
pub const ib_wc_opcode_IB_WC_REG_MR: ib_wc_opcode = 10;
pub const ib_wc_opcode_IB_WC_RECV: ib_wc_opcode = 128;

pub type ib_wc_opcode = u32;

pub const ib_wc_flags_IB_WC_WITH_INVALIDATE: ib_wc_flags = 4;

pub type ib_wc_flags = u32;

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ib_wc {
    pub __bindgen_anon_1: ib_wc__bindgen_ty_1,
    pub status: ib_wc_status,
    pub opcode: ib_wc_opcode,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub qp: *mut ib_qp,
    pub ex: ib_wc__bindgen_ty_2,
    pub src_qp: u32,
    pub slid: u32,
    pub wc_flags: i32,
    pub pkey_index: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
    pub port_num: u32,
    pub smac: [u8; 6],
    pub vlan_id: u16,
    pub network_hdr_type: u8,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub union ib_wc__bindgen_ty_1 {
    pub wr_id: u64,
    pub wr_cqe: *mut ib_cqe,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub union ib_wc__bindgen_ty_2 {
    pub imm_data: u32,
    pub invalidate_rkey: u32,
}

pub const ro2ib_cm_reachability_RO2IB_CM_REACHABLE: ro2ib_cm_reachability = 0;
pub const ro2ib_cm_reachability_RO2IB_CM_NO_ROUTE: ro2ib_cm_reachability = 1;
pub const ro2ib_cm_reachability_RO2IB_CM_NO_ADDRESS: ro2ib_cm_reachability = 2;

pub type ro2ib_cm_reachability = u32;

pub const ib_wr_opcode_IB_WR_RDMA_WRITE: ib_wr_opcode = 0;
pub const ib_wr_opcode_IB_WR_SEND: ib_wr_opcode = 2;
pub const ib_wr_opcode_IB_WR_LOCAL_INV: ib_wr_opcode = 7;
pub const ib_wr_opcode_IB_WR_REG_MR: ib_wr_opcode = 32;

pub type ib_wr_opcode = u32;

pub const ib_send_flags_IB_SEND_SIGNALED: ib_send_flags = 2;
pub const ib_send_flags_IB_SEND_INLINE: ib_send_flags = 8;

pub type ib_send_flags = i32;

#[repr(C)]
#[derive(Default, Copy, Clone, MaybeZeroable)]
pub struct ib_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
#[derive(Default, Copy, Clone, MaybeZeroable)]
pub struct ib_cqe {
    pub done: Option<unsafe extern "C" fn(cq: *mut ib_cq, wc: *mut ib_wc)>,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ib_send_wr {
    pub next: *mut ib_send_wr,
    pub __bindgen_anon_1: ib_send_wr__bindgen_ty_1,
    pub sg_list: *mut ib_sge,
    pub num_sge: i32,
    pub opcode: ib_wr_opcode,
    pub send_flags: i32,
    pub ex: ib_send_wr__bindgen_ty_2,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub union ib_send_wr__bindgen_ty_1 {
    pub wr_id: u64,
    pub wr_cqe: *mut ib_cqe,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub union ib_send_wr__bindgen_ty_2 {
    pub imm_data: u32,
    pub invalidate_rkey: u32,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ib_rdma_wr {
    pub wr: ib_send_wr,
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ib_reg_wr {
    pub wr: ib_send_wr,
    pub mr: *mut ib_mr,
    pub key: u32,
    pub access: i32,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ib_recv_wr {
    pub next: *mut ib_recv_wr,
    pub __bindgen_anon_1: ib_recv_wr__bindgen_ty_1,
    pub sg_list: *mut ib_sge,
    pub num_sge: i32,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub union ib_recv_wr__bindgen_ty_1 {
    pub wr_id: u64,
    pub wr_cqe: *mut ib_cqe,
}

pub const ib_access_flags_IB_ACCESS_LOCAL_WRITE: ib_access_flags = 1;
pub const ib_access_flags_IB_ACCESS_REMOTE_WRITE: ib_access_flags = 2;

pub type ib_access_flags = u32;

pub const rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED: rdma_cm_event_type = 0;
pub const rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR: rdma_cm_event_type = 1;
pub const rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED: rdma_cm_event_type = 2;
pub const rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_ERROR: rdma_cm_event_type = 3;
pub const rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST: rdma_cm_event_type = 4;
pub const rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_RESPONSE: rdma_cm_event_type = 5;
pub const rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_ERROR: rdma_cm_event_type = 6;
pub const rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE: rdma_cm_event_type = 7;
pub const rdma_cm_event_type_RDMA_CM_EVENT_REJECTED: rdma_cm_event_type = 8;
pub const rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED: rdma_cm_event_type = 9;
pub const rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED: rdma_cm_event_type = 10;
pub const rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL: rdma_cm_event_type = 11;
pub const rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE: rdma_cm_event_type = 14;
pub const rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT: rdma_cm_event_type = 15;

pub type rdma_cm_event_type = u32;

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ro2ib_layout {
    pub size: [u32; 22],
    pub offset: [u32; 32],
}

#[repr(C)]
#[derive(Default, Copy, Clone, MaybeZeroable)]
pub struct ro2ib_device_attrs {
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_send_sge: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_fast_reg_page_list_len: u32,
    pub page_size_cap: u64,
    pub mem_mgt_extensions: bool,
    pub local_inv: bool,
}

#[repr(C)]
#[derive(Default, Copy, Clone, MaybeZeroable)]
pub struct ro2ib_port {
    pub active: bool,
    pub mtu: u32,
    pub lid: u32,
    pub speed: u32,
    pub width: u32,
    pub bad_pkeys: u32,
}

#[repr(C)]
#[derive(Default, Copy, Clone, MaybeZeroable)]
pub struct ro2ib_qp_caps {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_inline: u32,
    pub qpn: u32,
}

#[repr(C)]
#[derive(Default, Copy, Clone, MaybeZeroable)]
pub struct ro2ib_sg_shape {
    pub used: u32,
    pub pages: u32,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ro2ib_sg_list {
    pub table: sg_table,
    pub reserved: bool,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ro2ib_sg_pos {
    pub sg: *mut scatterlist,
    pub at: u32,
    pub left: u32,
}

#[repr(C)]
#[derive(Default, Copy, Clone, MaybeZeroable)]
pub struct ro2ib_addr {
    pub ip: [u8; 16],
    pub scope_id: u32,
    pub port: u16,
    pub v6: bool,
}

#[repr(C)]
#[derive(Default, Copy, Clone, MaybeZeroable)]
pub struct ro2ib_cm_path {
    pub sgid: [u8; 16],
    pub dgid: [u8; 16],
    pub mtu: u32,
    pub port: u32,
    pub tos: i16,
    pub sl: i8,
    pub retry_count: i8,
    pub rnr_retry_count: i8,
    pub ack_timeout: i8,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ro2ib_cm_event {
    pub private_data: *const c_void,
    pub event: u32,
    pub status: i32,
    pub qpn: u32,
    pub private_data_len: u8,
    pub packet_life_time: u8,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ro2ib_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub min_rnr_timer: u8,
}

pub type ro2ib_cm_handler =
    Option<unsafe extern "C" fn(arg1: *mut rdma_cm_id, arg2: *mut rdma_cm_event) -> i32>;

#[repr(C)]
#[derive(Debug, MaybeZeroable)]
pub struct ro2ib_ni {
    _unused: [u8; 0],
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ro2ib_payload {
    pub bv: *const bio_vec,
    pub nr: u32,
    pub offset: u32,
    pub nob: u32,
    pub gpu: bool,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ro2ib_send_req {
    pub msg: *mut lnet_msg,
    pub target: u64,
    pub type_: u32,
    pub to_router: bool,
    pub routing: bool,
    pub hdr: [u8; 72],
    pub pages: ro2ib_payload,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ro2ib_recv_req {
    pub msg: *mut lnet_msg,
    pub pages: ro2ib_payload,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ro2ib_ni_cfg {
    pub nid: u64,
    pub ip: u32,
    pub net: *mut net,
    pub ifindex: i32,
    pub name: [u8; 32],
    pub peer_credits: u32,
    pub max_tx_credits: u32,
    pub peer_credits_open: bool,
    pub max_tx_credits_open: bool,
    pub service: u32,
    pub ib_mtu: u32,
    pub wrq_sge: u32,
    pub wrq_sge_given: bool,
}

pub const ro2ib_link_event_RO2IB_LINK_UP: ro2ib_link_event = 0;
pub const ro2ib_link_event_RO2IB_LINK_DOWN: ro2ib_link_event = 1;
pub const ro2ib_link_event_RO2IB_LINK_LEAVING: ro2ib_link_event = 2;
pub const ro2ib_link_event_RO2IB_LINK_MOVED: ro2ib_link_event = 3;
pub const ro2ib_link_event_RO2IB_LINK_NO_CARRIER: ro2ib_link_event = 4;
pub const ro2ib_link_event_RO2IB_LINK_MTU: ro2ib_link_event = 5;

pub type ro2ib_link_event = u32;

#[repr(C)]
#[derive(Default, Copy, Clone, MaybeZeroable)]
pub struct ro2ib_lnd_ops {
    pub startup: Option<
        unsafe extern "C" fn(
            cfg: *const ro2ib_ni_cfg,
            ni: *mut ro2ib_ni,
            driver: *mut c_void,
            priv_: *mut *mut c_void,
        ) -> i32,
    >,
    pub shutdown: Option<unsafe extern "C" fn(priv_: *mut c_void)>,
    pub send: Option<unsafe extern "C" fn(priv_: *mut c_void, req: *const ro2ib_send_req) -> i32>,
    pub eager_recv: Option<unsafe extern "C" fn(priv_: *mut c_void, rx: *mut c_void)>,
    pub recv: Option<
        unsafe extern "C" fn(
            priv_: *mut c_void,
            rx: *mut c_void,
            req: *const ro2ib_recv_req,
        ) -> i32,
    >,
    pub link_event: Option<unsafe extern "C" fn(priv_: *mut c_void, event: ro2ib_link_event)>,
    pub link_busy: Option<unsafe extern "C" fn(priv_: *mut c_void) -> bool>,
    pub has_gid: Option<unsafe extern "C" fn(priv_: *mut c_void) -> bool>,
    pub get_peer: Option<
        unsafe extern "C" fn(priv_: *mut c_void, index: u32, nid: *mut u64, refs: *mut u32) -> i32,
    >,
    pub debug_peer: Option<unsafe extern "C" fn(priv_: *mut c_void, nid: u64) -> i32>,
    pub del_peer: Option<unsafe extern "C" fn(priv_: *mut c_void, nid: u64) -> i32>,
    pub get_conn: Option<
        unsafe extern "C" fn(priv_: *mut c_void, index: u32, nid: *mut u64, mtu: *mut u32) -> i32,
    >,
    pub close_conns: Option<unsafe extern "C" fn(priv_: *mut c_void, nid: u64) -> i32>,
    pub settings_changed: Option<unsafe extern "C" fn(priv_: *mut c_void)>,
    pub older_conns: Option<unsafe extern "C" fn(priv_: *mut c_void) -> u32>,
}

pub const ro2ib_depth_by_RO2IB_DEPTH_GIVEN: ro2ib_depth_by = 0;
pub const ro2ib_depth_by_RO2IB_DEPTH_TUNED: ro2ib_depth_by = 1;
pub const ro2ib_depth_by_RO2IB_DEPTH_CHOSEN: ro2ib_depth_by = 2;

pub type ro2ib_depth_by = u32;

pub const ro2ib_tune_RO2IB_TUNE_UNSET: ro2ib_tune = -2;

pub type ro2ib_tune = i32;

/// Calls the macro `$with` with `RO2IB_PARAM_TUNABLES`: the function that returns the value in force, its type, and the
/// value of the parameter unless a world has another.
macro_rules! param_tunables {
    ($with:ident) => {
        $with! {
            retry_count: ro2ib_ni_retry_count -> u8 = 5,
            rnr_retry_count: ro2ib_ni_rnr_retry_count -> u8 = 6,
            timeout: ro2ib_ni_timeout -> u32 = 10,
            keepalive: ro2ib_ni_keepalive -> u32 = 100,
            probe: ro2ib_ni_probe -> u32 = 1000,
        }
    };
}
#[allow(unused_imports)]
pub(crate) use param_tunables;

macro_rules! tuning {
    ($($key:ident: $get:ident -> $type:ty = $default:expr,)*) => {
        #[repr(C)]
        #[derive(Debug, Default, Copy, Clone, MaybeZeroable)]
        pub struct ro2ib_tuning {
            pub conns_per_peer: i32,
            pub tos: i32,
            pub peer_credits: i32,
            $(pub $key: i32,)*
        }
        extern "C" {
            $(pub fn $get(ni: *const ro2ib_ni) -> $type;)*
        }
    };
}
param_tunables!(tuning);

pub const ro2ib_dk_mask_RO2IB_DK_NETERROR: ro2ib_dk_mask = 256;
pub const ro2ib_dk_mask_RO2IB_DK_NET: ro2ib_dk_mask = 512;
pub const ro2ib_dk_mask_RO2IB_DK_CONSOLE: ro2ib_dk_mask = 33554432;
pub const ro2ib_dk_mask_RO2IB_DK_LND: ro2ib_dk_mask = 2048;

pub type ro2ib_dk_mask = u32;

pub const ro2ib_trace_bit_RO2IB_TRACE_CONN_STATE: ro2ib_trace_bit = 1;
pub const ro2ib_trace_bit_RO2IB_TRACE_STALL: ro2ib_trace_bit = 2;
pub const ro2ib_trace_bit_RO2IB_TRACE_STALL_OVER: ro2ib_trace_bit = 4;
pub const ro2ib_trace_bit_RO2IB_TRACE_POST: ro2ib_trace_bit = 8;
pub const ro2ib_trace_bit_RO2IB_TRACE_COMPLETE: ro2ib_trace_bit = 16;
pub const ro2ib_trace_bit_RO2IB_TRACE_RECEIVE: ro2ib_trace_bit = 32;
pub const ro2ib_trace_bit_RO2IB_TRACE_STAGE: ro2ib_trace_bit = 64;
pub const ro2ib_trace_bit_RO2IB_TRACE_CLOSE: ro2ib_trace_bit = 128;
pub const ro2ib_trace_bit_RO2IB_TRACE_REFUSE: ro2ib_trace_bit = 256;

pub type ro2ib_trace_bit = u32;

pub const RO2IB_TRACE_NID: u32 = 32;
pub const RO2IB_TRACE_WORD: u32 = 24;

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct ro2ib_trace_conn {
    pub ni: [u8; 32],
    pub peer: [u8; 32],
    pub number: u32,
    pub qpn: u32,
    pub active: bool,
}

/// As bindgen does it for a structure that contains a pointer.
macro_rules! zeroed_by_default {
    ($($name:ident)*) => {$(
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: Integers, and pointers that may be null.
                unsafe { ::core::mem::zeroed() }
            }
        }
    )*};
}

zeroed_by_default! {
    ib_event__bindgen_ty_1
    ib_event
    ib_event_handler
    ib_wc__bindgen_ty_1
    ib_wc__bindgen_ty_2
    ib_wc
    ib_send_wr__bindgen_ty_1
    ib_send_wr__bindgen_ty_2
    ib_send_wr
    ib_rdma_wr
    ib_reg_wr
    ib_recv_wr__bindgen_ty_1
    ib_recv_wr
    ro2ib_sg_pos
    ro2ib_cm_event
    ro2ib_conn_param
    ro2ib_payload
    ro2ib_send_req
    ro2ib_recv_req
    ro2ib_ni_cfg
}

unsafe extern "C" {
    pub fn ib_unregister_event_handler(event_handler: *mut ib_event_handler);
    pub fn ib_device_put(device: *mut ib_device);
    pub fn rdma_roce_rescan_device(ib_dev: *mut ib_device);
    pub fn ro2ib_cq_quiesce(cq: *mut ro2ib_cq);
    pub fn ro2ib_cq_poll(cq: *mut ro2ib_cq);
    pub fn ro2ib_cq_is_used(cq: *const ro2ib_cq) -> bool;
    pub fn ro2ib_cq_abandon(cq: *mut ro2ib_cq);
    pub fn ro2ib_cq_destroy(cq: *mut ro2ib_cq);
    pub fn ro2ib_cm_roce_gid(id: *mut rdma_cm_id, gid: *mut u8) -> bool;
    pub fn rdma_destroy_id(id: *mut rdma_cm_id);
    pub fn rdma_destroy_qp(id: *mut rdma_cm_id);
    pub fn rdma_lock_handler(id: *mut rdma_cm_id);
    pub fn rdma_unlock_handler(id: *mut rdma_cm_id);
    pub fn rdma_disconnect(id: *mut rdma_cm_id) -> i32;
    pub fn rdma_set_service_type(id: *mut rdma_cm_id, tos: i32);
    pub fn rdma_set_ack_timeout(id: *mut rdma_cm_id, timeout: u8) -> i32;
    pub fn ro2ib_spin_lock_bh(lock: *mut spinlock_t);
    pub fn ro2ib_spin_unlock_bh(lock: *mut spinlock_t);
    pub fn ro2ib_spin_trylock_bh(lock: *mut spinlock_t) -> i32;
    pub fn ro2ib_spin_assert_held(lock: *mut spinlock_t);
    pub fn ro2ib_memalloc_nofs_save() -> u32;
    pub fn ro2ib_memalloc_nofs_restore(flags: u32);
    pub fn ro2ib_alloc_workqueue(
        name: *const u8,
        unbound: bool,
        highpri: bool,
        at_once: i32,
    ) -> *mut workqueue_struct;
    pub fn ro2ib_flush_workqueue(wq: *mut workqueue_struct);
    pub fn ro2ib_synchronize_callbacks();
    pub fn ro2ib_online_cpu(hint: u32) -> u32;
    pub fn ro2ib_cpus() -> u32;
    pub fn ro2ib_init_net() -> *mut net;
    pub fn ro2ib_log_allowed() -> bool;
    pub fn ro2ib_log_untrusted_allowed() -> bool;
    pub fn ro2ib_layout() -> *const ro2ib_layout;
    pub fn ro2ib_rs_check_access(text: *const u8, len: usize) -> i32;
    pub fn ro2ib_rs_check_tune(text: *const u8, len: usize) -> i32;
    pub fn ro2ib_rs_access_allows(text: *const u8, len: usize, ni: u64, peer: u64) -> bool;
    pub fn ro2ib_rs_tuning(text: *const u8, len: usize, ni: u64, out: *mut ro2ib_tuning);
    pub fn ro2ib_device_try_get(dev: *mut ib_device) -> bool;
    pub fn ro2ib_device_attrs(dev: *mut ib_device, out: *mut ro2ib_device_attrs);
    pub fn ro2ib_device_is_software(dev: *mut ib_device) -> bool;
    pub fn ro2ib_device_uses_irq(dev: *mut ib_device) -> bool;
    pub fn ro2ib_device_is_iwarp(dev: *mut ib_device, port: u32) -> bool;
    pub fn ro2ib_device_is_roce(dev: *mut ib_device, port: u32) -> bool;
    pub fn ro2ib_device_is_ib(dev: *mut ib_device, port: u32) -> bool;
    pub fn ro2ib_device_replays_local_wrs(dev: *mut ib_device) -> bool;
    pub fn ro2ib_device_reads_after_completion(dev: *mut ib_device) -> bool;
    pub fn ro2ib_port_query(dev: *mut ib_device, port: u32, out: *mut ro2ib_port);
    pub fn ro2ib_gsi_failed(dev: *mut ib_device, port: u32) -> bool;
    pub fn ro2ib_event_port(ev: *const ib_event) -> u32;
    pub fn ro2ib_device_dma(dev: *mut ib_device) -> *mut device;
    pub fn ro2ib_device_name(dev: *mut ib_device, buf: *mut u8, len: usize);
    pub fn ro2ib_register_event_handler(
        h: *mut ib_event_handler,
        dev: *mut ib_device,
        fn_: Option<unsafe extern "C" fn(arg1: *mut ib_event_handler, arg2: *mut ib_event)>,
    );
    pub fn ro2ib_alloc_pd(dev: *mut ib_device) -> *mut ib_pd;
    pub fn ro2ib_dealloc_pd(pd: *mut ib_pd);
    pub fn ro2ib_pd_lkey(pd: *mut ib_pd) -> u32;
    pub fn ro2ib_cq_create(
        dev: *mut ib_device,
        nr_cqe: u32,
        vector: u32,
        wq: *mut workqueue_struct,
        round: Option<unsafe extern "C" fn(context: *mut c_void, wcs: *mut ib_wc, n: i32)>,
        event: Option<unsafe extern "C" fn(event: *mut ib_event, context: *mut c_void)>,
        context: *mut c_void,
    ) -> *mut ro2ib_cq;
    pub fn ro2ib_alloc_mr(pd: *mut ib_pd, max_pages: u32) -> *mut ib_mr;
    pub fn ro2ib_dereg_mr(mr: *mut ib_mr) -> bool;
    pub fn ro2ib_map_mr_sg(mr: *mut ib_mr, sgt: *mut sg_table, page_size: u32) -> i32;
    pub fn ro2ib_mr_bump_key(mr: *mut ib_mr);
    pub fn ro2ib_mr_get(mr: *const ib_mr, rkey: *mut u32, iova: *mut u64, length: *mut u64);
    pub fn ro2ib_create_qp(
        id: *mut rdma_cm_id,
        pd: *mut ib_pd,
        cq: *mut ro2ib_cq,
        caps: *mut ro2ib_qp_caps,
        out: *mut *mut ib_qp,
    ) -> i32;
    pub fn ro2ib_qp_to_err(qp: *mut ib_qp) -> i32;
    pub fn ro2ib_ib_post_send(
        qp: *mut ib_qp,
        wr: *const ib_send_wr,
        bad: *mut *const ib_send_wr,
    ) -> i32;
    pub fn ro2ib_ib_post_recv(
        qp: *mut ib_qp,
        wr: *const ib_recv_wr,
        bad: *mut *const ib_recv_wr,
    ) -> i32;
    pub fn ro2ib_wc_send(wc: *const ib_wc) -> i32;
    pub fn ro2ib_wc_other(wc: *const ib_wc) -> i32;
    pub fn ro2ib_wc_recv(wc: *const ib_wc) -> i32;
    pub fn ro2ib_signal_all() -> bool;
    pub fn ro2ib_bufs_alloc(dev: *mut ib_device, n: *mut u32, wait: bool) -> *mut c_void;
    pub fn ro2ib_bufs_free(bufs: *mut c_void, n: u32);
    pub fn ro2ib_dma_map_buf(
        dev: *mut ib_device,
        buf: *mut c_void,
        len: usize,
        dir: i32,
        addr: *mut u64,
    ) -> i32;
    pub fn ro2ib_dma_unmap_buf(dev: *mut ib_device, addr: u64, len: usize, dir: i32);
    pub fn ro2ib_dma_needs_sync(dev: *mut ib_device, addr: u64) -> bool;
    pub fn ro2ib_dma_sync_for_cpu(dev: *mut ib_device, addr: u64, len: usize, dir: i32);
    pub fn ro2ib_dma_sync_for_device(dev: *mut ib_device, addr: u64, len: usize, dir: i32);
    pub fn ro2ib_sg_list_fill(
        list: *mut ro2ib_sg_list,
        bv: *const bio_vec,
        n: u32,
        offset: u32,
        nob: u32,
        merge: bool,
        run: *mut ro2ib_sg_shape,
    ) -> i32;
    pub fn ro2ib_sgt_is_mapped(
        sgt: *mut sg_table,
        n: i32,
        nob: u32,
        run: *mut ro2ib_sg_shape,
    ) -> i32;
    pub fn ro2ib_sg_gather(
        pos: *mut ro2ib_sg_pos,
        sge: *mut ib_sge,
        max: u32,
        nob: u32,
        lkey: u32,
    ) -> u32;
    pub fn ro2ib_sg_list_reserve(list: *mut ro2ib_sg_list, n: u32) -> i32;
    pub fn ro2ib_sg_list_free(list: *mut ro2ib_sg_list);
    pub fn ro2ib_dma_map_sgt(dev: *mut ib_device, sgt: *mut sg_table, used: u32, dir: i32) -> i32;
    pub fn ro2ib_dma_unmap_sgt(dev: *mut ib_device, sgt: *mut sg_table, used: u32, dir: i32);
    pub fn ro2ib_alloc_page() -> *mut page;
    pub fn ro2ib_free_page(page: *mut page);
    pub fn ro2ib_bvec_read(
        bv: *const bio_vec,
        n: u32,
        at: usize,
        to: *mut c_void,
        len: usize,
    ) -> usize;
    pub fn ro2ib_bvec_write(
        bv: *const bio_vec,
        n: u32,
        at: usize,
        from: *const c_void,
        len: usize,
    ) -> usize;
    pub fn ro2ib_bvec_copy(
        to: *const bio_vec,
        nto: u32,
        to_at: usize,
        from: *const bio_vec,
        nfrom: u32,
        from_at: usize,
        len: usize,
    ) -> usize;
    pub fn ro2ib_cm_create(
        net: *mut net,
        handler: ro2ib_cm_handler,
        context: *mut c_void,
    ) -> *mut rdma_cm_id;
    pub fn ro2ib_cm_context(id: *mut rdma_cm_id) -> *mut c_void;
    pub fn ro2ib_cm_adopt(id: *mut rdma_cm_id, handler: ro2ib_cm_handler, context: *mut c_void);
    pub fn ro2ib_cm_device(id: *mut rdma_cm_id) -> *mut ib_device;
    pub fn ro2ib_cm_port(id: *mut rdma_cm_id) -> u32;
    pub fn ro2ib_cm_dst_addr(id: *mut rdma_cm_id, out: *mut ro2ib_addr) -> bool;
    pub fn ro2ib_cm_event_get(
        id: *mut rdma_cm_id,
        ev: *mut rdma_cm_event,
        out: *mut ro2ib_cm_event,
    );
    pub fn ro2ib_cm_bind(id: *mut rdma_cm_id, addr: *const ro2ib_addr) -> i32;
    pub fn ro2ib_cm_listen(id: *mut rdma_cm_id, backlog: i32) -> i32;
    pub fn ro2ib_cm_resolve_addr(
        id: *mut rdma_cm_id,
        src: *const ro2ib_addr,
        dst: *const ro2ib_addr,
        timeout_ms: u32,
    ) -> i32;
    pub fn ro2ib_cm_resolve_addr_privileged(
        id: *mut rdma_cm_id,
        src: *const ro2ib_addr,
        dst: *const ro2ib_addr,
        timeout_ms: u32,
        share: bool,
    ) -> i32;
    pub fn ro2ib_cm_destroy(id: *mut rdma_cm_id, unresolved: bool);
    pub fn ro2ib_cm_resolve_route(id: *mut rdma_cm_id, timeout_ms: u32) -> i32;
    pub fn ro2ib_cm_set_min_rnr_timer(id: *mut rdma_cm_id, timer: u8) -> i32;
    pub fn ro2ib_cm_set_path_mtu(id: *mut rdma_cm_id, bytes: u32, most: u32) -> i32;
    pub fn ro2ib_cm_path(id: *mut rdma_cm_id, out: *mut ro2ib_cm_path);
    pub fn ro2ib_cm_reachability(id: *mut rdma_cm_id) -> ro2ib_cm_reachability;
    pub fn ro2ib_cm_connect_locked(id: *mut rdma_cm_id, param: *const ro2ib_conn_param) -> i32;
    pub fn ro2ib_cm_accept_locked(id: *mut rdma_cm_id, param: *const ro2ib_conn_param) -> i32;
    pub fn ro2ib_cm_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> i32;
    pub fn ro2ib_shim_register(ops: *const ro2ib_lnd_ops, driver: *mut c_void) -> i32;
    pub fn ro2ib_shim_unregister();
    pub fn ro2ib_ni_get(ni: *mut ro2ib_ni);
    pub fn ro2ib_ni_put(ni: *mut ro2ib_ni);
    pub fn ro2ib_ni_active(ni: *const ro2ib_ni) -> bool;
    pub fn ro2ib_lnet_peer_cpu(ni: *mut ro2ib_ni, nid: u64, salt: u32) -> i32;
    pub fn ro2ib_lnet_parse(
        ni: *mut ro2ib_ni,
        hdr: *const u8,
        from: u64,
        rx: *mut c_void,
        rdma: bool,
    ) -> i32;
    pub fn ro2ib_lnet_finalize(msg: *mut lnet_msg, status: i32, health: u32);
    pub fn ro2ib_lnet_finalize_late(msg: *mut lnet_msg, status: i32, health: u32);
    pub fn ro2ib_lnet_prepare_resend(
        msg: *mut lnet_msg,
        health: u32,
        req: *mut ro2ib_send_req,
    ) -> bool;
    pub fn ro2ib_lnet_create_reply(ni: *mut ro2ib_ni, get: *mut lnet_msg) -> *mut lnet_msg;
    pub fn ro2ib_lnet_set_reply_len(ni: *mut ro2ib_ni, reply: *mut lnet_msg, len: u32) -> i32;
    pub fn ro2ib_lnet_send_error(msg: *mut lnet_msg, health: *mut u32) -> bool;
    pub fn ro2ib_lnet_notify_down(ni: *mut ro2ib_ni, nid: u64, age: u64);
    pub fn ro2ib_lnet_set_fatal(ni: *mut ro2ib_ni, fatal: bool, told: bool);
    pub fn ro2ib_ni_is_bonded(ni: *const ro2ib_ni) -> bool;
    pub fn ro2ib_lnet_find_ni(nid: u64, priv_: *mut *mut c_void) -> *mut ro2ib_ni;
    pub fn ro2ib_lnet_put_found(ni: *mut ro2ib_ni);
    pub fn ro2ib_lnet_set_dma_device(ni: *mut ro2ib_ni, dev: *mut device);
    pub fn ro2ib_ni_choose(ni: *mut ro2ib_ni, depth: u32, credits: u32, mbps: u32);
    pub fn ro2ib_ni_depth_by(ni: *const ro2ib_ni) -> ro2ib_depth_by;
    pub fn ro2ib_lnet_gpu_map_sg(
        dev: *mut device,
        sg: *mut scatterlist,
        n: u32,
        write: bool,
    ) -> i32;
    pub fn ro2ib_lnet_gpu_unmap_sg(dev: *mut device, sg: *mut scatterlist, n: u32, write: bool);
    pub fn ro2ib_lnet_gpu_has(page: *mut page) -> bool;
    pub fn ro2ib_access_allows(ni: *const ro2ib_ni, peer: u64) -> bool;
    pub fn ro2ib_ni_conns_per_peer(ni: *const ro2ib_ni) -> u32;
    pub fn ro2ib_ni_tos(ni: *const ro2ib_ni) -> i32;
    pub fn ro2ib_ni_peer_credits(ni: *const ro2ib_ni) -> u32;
    pub fn ro2ib_ni_peer_credits_hiw(ni: *const ro2ib_ni) -> u32;
    pub fn ro2ib_ni_lnet_credits(ni: *const ro2ib_ni) -> u32;
    pub fn ro2ib_net_get(net: *mut net);
    pub fn ro2ib_net_put(net: *mut net);
    pub fn ro2ib_param_cksum() -> bool;
    pub fn ro2ib_param_require_privileged_port() -> bool;
    pub fn ro2ib_param_use_privileged_port() -> bool;
    pub fn ro2ib_debugfs_dir(name: *const u8) -> *mut dentry;
    pub fn ro2ib_debugfs_create(
        name: *const u8,
        parent: *mut dentry,
        file: *mut ro2ib_debugfs_file,
    ) -> *mut dentry;
    pub fn ro2ib_debugfs_remove(dentry: *mut dentry);
    pub fn ro2ib_debugfs_write(seq: *mut seq_file, text: *const u8, len: usize) -> bool;
    pub fn ro2ib_rcu_map_create() -> *mut ro2ib_rcu_map;
    pub fn ro2ib_rcu_map_destroy(map: *mut ro2ib_rcu_map);
    pub fn ro2ib_rcu_map_begin(map: *mut ro2ib_rcu_map, key: u32) -> *mut c_void;
    pub fn ro2ib_rcu_map_begin_at(map: *mut ro2ib_rcu_map, key: *mut u32) -> *mut c_void;
    pub fn ro2ib_rcu_map_end();
    pub fn ro2ib_rcu_map_add(map: *mut ro2ib_rcu_map, key: u32, object: *mut c_void) -> i32;
    pub fn ro2ib_rcu_map_remove(map: *mut ro2ib_rcu_map, key: u32, object: *mut c_void) -> bool;
    pub fn ro2ib_rcu_map_close(map: *mut ro2ib_rcu_map);
    pub fn ro2ib_rcu_drop(
        object: *mut c_void,
        drop: Option<unsafe extern "C" fn(object: *mut c_void)>,
        wq: *mut workqueue_struct,
    );
    pub fn ro2ib_rcu_barrier();
    pub fn ro2ib_percpu_alloc(n: u32) -> *mut u64;
    pub fn ro2ib_percpu_free(p: *mut u64);
    pub fn ro2ib_percpu_record(p: *mut u64, row: usize, n: u64);
    pub fn ro2ib_percpu_sum(p: *mut u64, at: u32) -> u64;
    pub static ro2ib_trace_on: u32;
    pub fn ro2ib_trace_conn_state(
        c: *const ro2ib_trace_conn,
        from: *const u8,
        to: *const u8,
        why: *const u8,
    );
    pub fn ro2ib_trace_stall(
        c: *const ro2ib_trace_conn,
        want: *const u8,
        queued: u32,
        credits: u32,
    );
    pub fn ro2ib_trace_stall_over(c: *const ro2ib_trace_conn, want: *const u8, ns: u64);
    pub fn ro2ib_trace_post(
        c: *const ro2ib_trace_conn,
        op: *const u8,
        tx: u32,
        bytes: u32,
        credits: u32,
    );
    pub fn ro2ib_trace_complete(
        c: *const ro2ib_trace_conn,
        op: *const u8,
        tx: u32,
        result: *const u8,
    );
    pub fn ro2ib_trace_receive(c: *const ro2ib_trace_conn, op: *const u8, bytes: u32, credits: u32);
    pub fn ro2ib_trace_stage(c: *const ro2ib_trace_conn, op: *const u8, stage: *const u8, ns: u64);
    pub fn ro2ib_trace_close(
        c: *const ro2ib_trace_conn,
        up: bool,
        by: *const u8,
        cause: *const u8,
        detail: *const u8,
    );
    pub fn ro2ib_trace_refuse(ni: *const u8, peer: *const u8, cause: *const u8);
    pub fn ro2ib_uevent(what: *const u8, ni: *const u8, device: *const u8);
    pub static ro2ib_dk_debug: *const u32;
    pub static ro2ib_dk_subsystems: *const u32;
    pub fn ro2ib_dk_line(
        mask: u32,
        file: *const u8,
        fn_: *const u8,
        line: u32,
        text: *const u8,
        len: u32,
    );
}
