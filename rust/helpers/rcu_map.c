// SPDX-License-Identifier: GPL-2.0
/*
 * Map from 32-bit keys to objects with counted references. Readers take no
 * lock: the reference of an object that leaves the map is dropped after a grace
 * period.
 */
#include <linux/err.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "ro2iblnd_compat.h"
#include "ro2iblnd_helpers.h"

struct ro2ib_rcu_map {
	struct xarray objects;
	bool closed;	/* protected by the lock of @objects */
};

/* Reference to drop after a grace period. */
struct ro2ib_rcu_drop {
	struct rcu_work work;
	void (*drop)(void *object);
	void *object;
};

/* Returns NULL without memory. May sleep. */
struct ro2ib_rcu_map *ro2ib_rcu_map_create(void)
{
	struct ro2ib_rcu_map *map = kzalloc(sizeof(*map), GFP_KERNEL);

	if (map)
		xa_init(&map->objects);
	return map;
}

/* The map is empty, and has no reader. */
void ro2ib_rcu_map_destroy(struct ro2ib_rcu_map *map)
{
	xa_destroy(&map->objects);
	kfree(map);
}

/*
 * Begins a read section, which ro2ib_rcu_map_end() ends, also if there is no
 * object. The object exists until then.
 */
void *ro2ib_rcu_map_begin(struct ro2ib_rcu_map *map, u32 key)
{
	rcu_read_lock();
	return xa_load(&map->objects, key);
}

/*
 * Begins a read section as ro2ib_rcu_map_begin() does, with the object of the
 * lowest key that is not below @key, and stores that key.
 */
void *ro2ib_rcu_map_begin_at(struct ro2ib_rcu_map *map, u32 *key)
{
	unsigned long index = *key;
	void *object;

	rcu_read_lock();
	object = xa_find(&map->objects, &index, U32_MAX, XA_PRESENT);
	*key = index;
	return object;
}

void ro2ib_rcu_map_end(void)
{
	rcu_read_unlock();
}

/*
 * Returns -EEXIST if the key has an object, -ESHUTDOWN if the map is closed, or
 * -ENOMEM. May sleep.
 */
int ro2ib_rcu_map_add(struct ro2ib_rcu_map *map, u32 key, void *object)
{
	int err = xa_reserve(&map->objects, key, GFP_KERNEL);

	if (err)
		return err;
	xa_lock(&map->objects);
	if (map->closed)
		err = -ESHUTDOWN;
	else if (xa_load(&map->objects, key))
		err = -EEXIST;
	else
		/* Takes no memory, unless another caller used the reservation. */
		err = xa_err(__xa_store(&map->objects, key, object,
					GFP_NOWAIT | __GFP_NOWARN));
	xa_unlock(&map->objects);
	if (err)
		xa_release(&map->objects, key);
	return err;
}

/*
 * Returns whether @object was in the map. The caller then has the map's
 * reference, and drops it with ro2ib_rcu_drop().
 */
bool ro2ib_rcu_map_remove(struct ro2ib_rcu_map *map, u32 key, void *object)
{
	return xa_cmpxchg(&map->objects, key, object, NULL, 0) == object;
}

/* Prevents ro2ib_rcu_map_add() from now on. */
void ro2ib_rcu_map_close(struct ro2ib_rcu_map *map)
{
	xa_lock(&map->objects);
	map->closed = true;
	xa_unlock(&map->objects);
}

static void ro2ib_rcu_drop_work(struct work_struct *work)
{
	struct ro2ib_rcu_drop *d = container_of(to_rcu_work(work),
						struct ro2ib_rcu_drop, work);

	d->drop(d->object);
	kfree(d);
}

/*
 * Calls @drop with @object in @wq after a grace period. Without memory, waits
 * for the grace period and calls it here. May sleep.
 */
void ro2ib_rcu_drop(void *object, void (*drop)(void *object),
		    struct workqueue_struct *wq)
{
	struct ro2ib_rcu_drop *d = kmalloc(sizeof(*d),
					   GFP_KERNEL | __GFP_NOWARN);

	if (!d) {
		synchronize_rcu();
		drop(object);
		return;
	}
	d->drop = drop;
	d->object = object;
	INIT_RCU_WORK(&d->work, ro2ib_rcu_drop_work);
	queue_rcu_work(wq, &d->work);
}

/* Waits until every earlier ro2ib_rcu_drop() has queued its item. Sleeps. */
void ro2ib_rcu_barrier(void)
{
	rcu_barrier();
}
