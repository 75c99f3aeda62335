/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C functions that the Rust side of ro2iblnd calls in place of static inlines
 * and macros, which bindgen cannot see. See rust/helpers/.
 */
#ifndef RO2IBLND_HELPERS_H
#define RO2IBLND_HELPERS_H

#include <linux/bvec.h>
#include <linux/dcache.h>
#include <linux/scatterlist.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

/* kernel_core.c */
void ro2ib_spin_lock_bh(spinlock_t *lock);
void ro2ib_spin_unlock_bh(spinlock_t *lock);
int ro2ib_spin_trylock_bh(spinlock_t *lock);
void ro2ib_spin_assert_held(spinlock_t *lock);
unsigned int ro2ib_memalloc_nofs_save(void);
void ro2ib_memalloc_nofs_restore(unsigned int flags);
struct workqueue_struct *ro2ib_alloc_workqueue(const char *name, bool unbound,
					       bool highpri, int at_once);
void ro2ib_flush_workqueue(struct workqueue_struct *wq);
void ro2ib_synchronize_callbacks(void);
u32 ro2ib_online_cpu(u32 hint);
u32 ro2ib_cpus(void);
struct net *ro2ib_init_net(void);
bool ro2ib_log_allowed(void);
bool ro2ib_log_untrusted_allowed(void);

/* debugfs_file.c */
struct ro2ib_debugfs_file {
	int (*show)(struct seq_file *seq, void *data);
	void *data;
};

struct dentry *ro2ib_debugfs_dir(const char *name);
struct dentry *ro2ib_debugfs_create(const char *name, struct dentry *parent,
				    struct ro2ib_debugfs_file *file);
void ro2ib_debugfs_remove(struct dentry *dentry);
bool ro2ib_debugfs_write(struct seq_file *seq, const char *text, size_t len);

/* percpu.c */
u64 *ro2ib_percpu_alloc(u32 n);
void ro2ib_percpu_free(u64 *p);
void ro2ib_percpu_record(u64 *p, unsigned long row, u64 n);
u64 ro2ib_percpu_sum(u64 *p, u32 at);

/* rcu_map.c */
struct ro2ib_rcu_map;

struct ro2ib_rcu_map *ro2ib_rcu_map_create(void);
void ro2ib_rcu_map_destroy(struct ro2ib_rcu_map *map);
void *ro2ib_rcu_map_begin(struct ro2ib_rcu_map *map, u32 key);
void *ro2ib_rcu_map_begin_at(struct ro2ib_rcu_map *map, u32 *key);
void ro2ib_rcu_map_end(void);
int ro2ib_rcu_map_add(struct ro2ib_rcu_map *map, u32 key, void *object);
bool ro2ib_rcu_map_remove(struct ro2ib_rcu_map *map, u32 key, void *object);
void ro2ib_rcu_map_close(struct ro2ib_rcu_map *map);
void ro2ib_rcu_drop(void *object, void (*drop)(void *object),
		    struct workqueue_struct *wq);
void ro2ib_rcu_barrier(void);

/* layout.c: sizes and offsets in bytes; see rust/rdma/layout_check.rs, which has the names */
struct ro2ib_layout {
	u32 size[22];
	u32 offset[32];
};

const struct ro2ib_layout *ro2ib_layout(void);

/* device.c */
struct ro2ib_device_attrs {
	u32 max_qp;
	u32 max_qp_wr;
	u32 max_send_sge;
	u32 max_cqe;
	u32 max_mr;
	u32 max_fast_reg_page_list_len;
	u64 page_size_cap;
	bool mem_mgt_extensions;
	bool local_inv;
};

bool ro2ib_device_try_get(struct ib_device *dev);
void ro2ib_device_attrs(struct ib_device *dev, struct ro2ib_device_attrs *out);
#ifdef RO2IB_TEST_HOOKS
bool ro2ib_as_hardware(void);
bool ro2ib_in_softirq(void);
bool ro2ib_as_interrupt(void);
#else
static inline bool ro2ib_as_interrupt(void)
{
	return false;
}

static inline bool ro2ib_as_hardware(void)
{
	return false;
}

static inline bool ro2ib_in_softirq(void)
{
	return false;
}
#endif

bool ro2ib_device_is_software(struct ib_device *dev);
bool ro2ib_device_uses_irq(struct ib_device *dev);
bool ro2ib_device_is_iwarp(struct ib_device *dev, u32 port);
bool ro2ib_device_is_roce(struct ib_device *dev, u32 port);
bool ro2ib_device_is_ib(struct ib_device *dev, u32 port);
bool ro2ib_device_replays_local_wrs(struct ib_device *dev);
bool ro2ib_device_reads_after_completion(struct ib_device *dev);

/*
 * State of a port; speed and width are the codes of PortInfo, bad_pkeys counts
 * packets of other partitions that the port dropped, mtu is in bytes.
 */
struct ro2ib_port {
	bool active;
	u32 mtu;	/* active MTU in bytes; 0: unknown */
	u32 lid;	/* InfiniBand; 0: none */
	u32 speed;
	u32 width;
	u32 bad_pkeys;
};

void ro2ib_port_query(struct ib_device *dev, u32 port, struct ro2ib_port *out);
bool ro2ib_gsi_failed(struct ib_device *dev, u32 port);
u32 ro2ib_event_port(const struct ib_event *ev);
void ro2ib_device_name(struct ib_device *dev, char *buf, size_t len);
/* The device that does the DMA of @dev; NULL for a software device */
struct device *ro2ib_device_dma(struct ib_device *dev);
void ro2ib_register_event_handler(struct ib_event_handler *h,
				  struct ib_device *dev,
				  void (*fn)(struct ib_event_handler *,
					     struct ib_event *));

/* cq.c */
struct ro2ib_cq;
/* Handles the completions @wcs of one poll, which it may change; softirq. */
typedef void ro2ib_cq_round_t(void *context, struct ib_wc *wcs, int n);
/* Handles an event of the queue pair; any context. */
typedef void ro2ib_qp_event_t(struct ib_event *event, void *context);
struct ro2ib_cq *ro2ib_cq_create(struct ib_device *dev, u32 nr_cqe, u32 vector,
				 struct workqueue_struct *wq,
				 ro2ib_cq_round_t *round,
				 ro2ib_qp_event_t *event, void *context);
void ro2ib_cq_poll(struct ro2ib_cq *cq);
bool ro2ib_cq_is_used(const struct ro2ib_cq *cq);
void ro2ib_cq_abandon(struct ro2ib_cq *cq);
void ro2ib_cq_destroy(struct ro2ib_cq *cq);
void ro2ib_cq_quiesce(struct ro2ib_cq *cq);

/* verbs.c */
struct ib_pd *ro2ib_alloc_pd(struct ib_device *dev);
void ro2ib_dealloc_pd(struct ib_pd *pd);
u32 ro2ib_pd_lkey(struct ib_pd *pd);
struct ib_mr *ro2ib_alloc_mr(struct ib_pd *pd, u32 max_pages);
bool ro2ib_dereg_mr(struct ib_mr *mr);
int ro2ib_map_mr_sg(struct ib_mr *mr, struct sg_table *sgt, u32 page_size);
void ro2ib_mr_bump_key(struct ib_mr *mr);
void ro2ib_mr_get(const struct ib_mr *mr, u32 *rkey, u64 *iova, u64 *length);

struct ro2ib_qp_caps {
	u32 max_send_wr;
	u32 max_recv_wr;
	u32 max_send_sge;
	u32 max_inline;
	u32 qpn;	/* the answer */
};

int ro2ib_create_qp(struct rdma_cm_id *id, struct ib_pd *pd, struct ro2ib_cq *cq,
		    struct ro2ib_qp_caps *caps, struct ib_qp **out);
int ro2ib_qp_to_err(struct ib_qp *qp);
int ro2ib_ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
		       const struct ib_send_wr **bad);
int ro2ib_ib_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
		       const struct ib_recv_wr **bad);
/* The following seven only in builds for tests (RO2IB_TEST_HOOKS) */
int ro2ib_wc_send(const struct ib_wc *wc);
int ro2ib_wc_write(const struct ib_wc *wc);
int ro2ib_wc_reg(const struct ib_wc *wc);
int ro2ib_wc_inv(const struct ib_wc *wc);
int ro2ib_wc_recv(const struct ib_wc *wc);
int ro2ib_wc_other(const struct ib_wc *wc);
bool ro2ib_signal_all(void);

/* dma.c: dir is 0 for to the device, 1 for from the device */
void *ro2ib_bufs_alloc(struct ib_device *dev, u32 *n, bool wait);
void ro2ib_bufs_free(void *bufs, u32 n);
int ro2ib_dma_map_buf(struct ib_device *dev, void *buf, size_t len, int dir,
		      u64 *addr);
void ro2ib_dma_unmap_buf(struct ib_device *dev, u64 addr, size_t len, int dir);
bool ro2ib_dma_needs_sync(struct ib_device *dev, u64 addr);
void ro2ib_dma_sync_for_cpu(struct ib_device *dev, u64 addr, size_t len,
			    int dir);
void ro2ib_dma_sync_for_device(struct ib_device *dev, u64 addr, size_t len,
			       int dir);

/* Shape of a list of fragments */
struct ro2ib_sg_shape {
	u32 used;	/* elements of the list */
	u32 pages;	/* pages of a region that covers it; 0: it has gaps */
};

/* Position in a mapped scatterlist */
struct ro2ib_sg_pos {
	struct scatterlist *sg;	/* NULL behind the last element */
	u32 at;
	u32 left;
};

/* List of fragments; the element of a list of one fragment is inside */
struct ro2ib_sg_list {
	struct sg_table table;
	struct scatterlist one;
	bool reserved;	/* the table has room that the list keeps */
};

int ro2ib_sg_list_fill(struct ro2ib_sg_list *list, const struct bio_vec *bv,
		       u32 n, u32 offset, u32 nob, bool merge,
		       struct ro2ib_sg_shape *run);
int ro2ib_sgt_is_mapped(struct sg_table *sgt, int n, u32 nob,
			struct ro2ib_sg_shape *run);
u32 ro2ib_sg_gather(struct ro2ib_sg_pos *pos, struct ib_sge *sge, u32 max,
		    u32 nob, u32 lkey);
int ro2ib_sg_list_reserve(struct ro2ib_sg_list *list, u32 n);
void ro2ib_sg_list_free(struct ro2ib_sg_list *list);
int ro2ib_dma_map_sgt(struct ib_device *dev, struct sg_table *sgt, u32 used,
		      int dir);
void ro2ib_dma_unmap_sgt(struct ib_device *dev, struct sg_table *sgt, u32 used,
			 int dir);
struct page *ro2ib_alloc_page(void);
void ro2ib_free_page(struct page *page);
size_t ro2ib_bvec_read(const struct bio_vec *bv, u32 n, size_t at, void *to,
		       size_t len);
size_t ro2ib_bvec_write(const struct bio_vec *bv, u32 n, size_t at,
			const void *from, size_t len);
size_t ro2ib_bvec_copy(const struct bio_vec *to, u32 nto, size_t to_at,
		       const struct bio_vec *from, u32 nfrom, size_t from_at,
		       size_t len);

/* cm.c */
struct ro2ib_addr {
	u8 ip[16];	/* network order; IPv4 in the first four */
	u32 scope_id;
	u16 port;	/* host order */
	bool v6;
};

struct ro2ib_cm_event {
	const void *private_data;
	u32 event;
	s32 status;
	u32 qpn;	/* of the other side, 0 if it is not in the event */
	u8 private_data_len;
	u8 packet_life_time;	/* of a request's path: 4.096 us * 2^n; otherwise 0 */
};

struct ro2ib_conn_param {
	const void *private_data;
	u8 private_data_len;
	u8 retry_count;
	u8 rnr_retry_count;
	u8 min_rnr_timer;
};

typedef int (*ro2ib_cm_handler)(struct rdma_cm_id *, struct rdma_cm_event *);

struct rdma_cm_id *ro2ib_cm_create(struct net *net, ro2ib_cm_handler handler,
				   void *context);
void *ro2ib_cm_context(struct rdma_cm_id *id);
void ro2ib_cm_adopt(struct rdma_cm_id *id, ro2ib_cm_handler handler,
		    void *context);
struct ib_device *ro2ib_cm_device(struct rdma_cm_id *id);
u32 ro2ib_cm_port(struct rdma_cm_id *id);
bool ro2ib_cm_dst_addr(struct rdma_cm_id *id, struct ro2ib_addr *out);
bool ro2ib_cm_roce_gid(struct rdma_cm_id *id, u8 *gid);
void ro2ib_cm_event_get(struct rdma_cm_id *id, struct rdma_cm_event *ev,
			struct ro2ib_cm_event *out);
int ro2ib_cm_bind(struct rdma_cm_id *id, const struct ro2ib_addr *addr);
int ro2ib_cm_listen(struct rdma_cm_id *id, int backlog);
int ro2ib_cm_resolve_addr(struct rdma_cm_id *id, const struct ro2ib_addr *src,
			  const struct ro2ib_addr *dst, u32 timeout_ms);
int ro2ib_cm_resolve_addr_privileged(struct rdma_cm_id *id,
				     const struct ro2ib_addr *src,
				     const struct ro2ib_addr *dst,
				     u32 timeout_ms, bool share);
void ro2ib_cm_destroy(struct rdma_cm_id *id, bool unresolved);
int ro2ib_cm_resolve_route(struct rdma_cm_id *id, u32 timeout_ms);
int ro2ib_cm_set_min_rnr_timer(struct rdma_cm_id *id, u8 timer);
int ro2ib_cm_set_path_mtu(struct rdma_cm_id *id, u32 bytes, u32 most);

/* Path from this side; an unknown field has the value in its comment */
struct ro2ib_cm_path {
	u8 sgid[16];		/* 0 */
	u8 dgid[16];		/* 0 */
	u32 mtu;		/* bytes; 0 */
	u32 port;		/* of the device, from 1; 0 */
	s16 tos;		/* traffic class; -1 */
	s8 sl;			/* -1 */
	s8 retry_count;		/* -1 */
	s8 rnr_retry_count;	/* -1 */
	s8 ack_timeout;		/* of one try: 4.096 us * 2^n; -1 */
};

void ro2ib_cm_path(struct rdma_cm_id *id, struct ro2ib_cm_path *out);

/* Whether a message of the CM would reach the other side */
enum ro2ib_cm_reachability {
	RO2IB_CM_REACHABLE,
	RO2IB_CM_NO_ROUTE,	/* sending breaks rxe */
	RO2IB_CM_NO_ADDRESS,	/* never sent, now and later */
};

enum ro2ib_cm_reachability ro2ib_cm_reachability(struct rdma_cm_id *id);
int ro2ib_cm_connect_locked(struct rdma_cm_id *id,
			    const struct ro2ib_conn_param *param);
int ro2ib_cm_accept_locked(struct rdma_cm_id *id,
			   const struct ro2ib_conn_param *param);
int ro2ib_cm_reject(struct rdma_cm_id *id, const void *data, u8 len);

#endif /* RO2IBLND_HELPERS_H */
