# SPDX-License-Identifier: GPL-2.0
"""Devices that the tests can run on: pytest --device NAME.

A guest has software devices only. ib_imitate makes an rxe look like an adapter in the attributes that the driver
queries, and refuses the requests that the adapter would refuse. ib_imitate_dma gives it the DMA of an adapter, and
ib_imitate_timing the completions, flushes and commands. The driver serves it as hardware, with completions in a
softirq. The numbers are those of the adapters' drivers in Linux 7.3.
"""

# Options for vm.Guest.
DEVICES = {
    "rxe": {},
    "siw": {"provider": "siw"},
    # 512 bytes of a work request, less two segments of 16: max_sq_sg in mlx5_ib_query_device().
    # Interrupts are moderated.
    "mlx5": {
        "hardware": True, "dma": "", "profile": "send_sge=30", "timing": "delay_ms=1 send_ms=3 flush_ms=2 comm_est=1",
    },  # fmt: skip
    # IRDMA_MAX_WQ_FRAGMENT_COUNT, IRDMA_MAX_QP_WRS(8), and max_hw_inline of the second generation.
    # IRDMA_FLUSH_DELAY_MS: it flushes every 20 ms, if the completion queue is empty.
    "irdma": {
        "hardware": True, "dma": "", "profile": "send_sge=13 qp_wr=4080 inline_max=101",
        "timing": "send_ms=3 flush_ms=20 lazy=1 command_ms=5",
    },  # fmt: skip
    # MAX_PBL_LVL_1_PGS and BNXT_STATIC_MAX_SGE. Giving pages to a region may sleep with some providers. Its driver
    # flushes before the adapter has stopped: bnxt_re_modify_qp().
    "bnxt_re": {
        "hardware": True, "dma": "", "profile": "send_sge=6 reg_pages=512 map_sleeps=1",
        "timing": "command_ms=2 comm_est=1 early_ms=20",
    },  # fmt: skip
    # max_send_sge and ERDMA_MAX_INLINE. Its firmware flushes late.
    "erdma": {
        "hardware": True, "dma": "", "profile": "send_sge=6 inline_max=96", "timing": "flush_ms=500 command_ms=50",
    },  # fmt: skip
    # The device has 2^16 keys in all. Here it has so few that they are enough for one connection of depth 8, and not
    # for two. rvt_create_qp() reports for each queue pair that no data goes inline.
    "hfi1": {"hardware": True, "profile": "regions=32 no_inline=1"},
    # Like irdma where the kernel's pages are larger than 4 KiB: its regions do not support that size, only smaller
    # ones. 1 MiB takes as many of these as soft-RoCE's regions have. The provider calls a handler within a post, as
    # ionic does.
    "halves": {
        "hardware": True, "dma": "", "profile": "page_sizes=0x800",
        "timing": "send_ms=3 flush_ms=20 lazy=1 command_ms=5 in_post=1",
    },  # fmt: skip
    # Lower limits than any of them: 1 MiB in pieces takes ten times the work requests of this send queue. A queue pair
    # with inline data is refused. All memory bounces, as in a confidential guest.
    "least": {
        "hardware": True, "dma": "", "append": "swiotlb=force",
        "profile": "send_sge=3 reg_pages=256 qp_wr=40 regions=32 no_inline=2",
    },  # fmt: skip
}

# Devices that the driver refuses to use. They are no --device.
UNUSABLE = {
    # The device refuses LOCAL_INV when it is posted: RDMA_DRIVER_HNS, HNS_ROCE_FRMR_MAX_PA.
    "hns": "driver=12 no_inv=1 reg_pages=512 map_sleeps=1",
    # T4_MAX_FR_DSGL_DEPTH. pvrdma has the same limit.
    "cxgb4": "reg_pages=128",
}

# In half of the tests in these files the driver polls completions in a softirq, as with an adapter. Nothing else
# differs. Files that count the failures of a call, or in which a call or a device fails for long, are excluded, because
# they use the same fault injection.
POLLED = (
    "test_work_requests", "test_flow_isolation", "test_hostile_connect", "test_hostile_messages",
    "test_hostile_pending", "test_lifecycle", "test_slow_lnet", "test_setting_values", "test_traffic",
)  # fmt: skip
