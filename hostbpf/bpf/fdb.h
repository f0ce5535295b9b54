/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef FDB_H
#define FDB_H

#include "frame.h"
#include "maps.h"

/*
 * The FDB is a two-choice, four-way table in an array, because the kernel's hash
 * map costs about 40 ns a look-up when hot and 400 ns over 32,768 random keys:
 * a bucket here is one cache line, and the first of the two holds most entries.
 */

static __always_inline __u64 fdb_key(const __u8 *mac, __u16 vlan)
{
	return mac_key(mac) | (__u64)(FDB_USED | vlan) << 48;
}

/* Gives the entry's dest and points *seen at its time stamp; 0 if there is none. */
static __always_inline __u32 fdb_find(const struct switch_control *ctl, __u32 bridge, __u64 key,
				      __u32 **seen)
{
	/* Addresses count up, and routers often have one MAC in many bridges: what
	 * has come out of the first product decides on both buckets. */
	__u64 mixed = (key + bridge * 0x9e3779b97f4a7c15ULL) * ctl->seed[0];

	mixed ^= mixed >> 32;
#pragma unroll
	for (int choice = 0; choice < 2; choice++) {
		__u32 at = mixed * ctl->seed[1 + choice] >> (64 - FDB_BUCKET_BITS);
		struct fdb_bucket *b = bpf_map_lookup_elem(&fdb, &at);

		if (!b)
			return 0;
#pragma unroll
		for (int i = 0; i < FDB_WAYS; i++) {
			volatile struct fdb_entry *e = &b->way[i];

			if (e->key != key)
				continue;
			__u32 dest = e->dest;

			if (dest >> 16 == bridge) {
				*seen = (__u32 *)&e->seen;
				return dest;
			}
		}
	}
	return 0;
}

#endif
