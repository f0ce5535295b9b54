/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MAPS_H
#define MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "tapswitch.h"

/*
 * The arrays that the daemon writes are memory-mapped: it changes them by single
 * atomic stores, and an entry is in force without a system call. A lookup in an
 * array is inlined by the verifier into a bounds check and an addition.
 */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct switch_control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORT_SLOTS);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

/* Bigger than ports, and looked at for VLAN-aware bridges and tagged frames alone. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORT_SLOTS);
	__type(key, __u32);
	__type(value, struct port_vlans);
} port_vlans SEC(".maps");

/* Looked at for ports with a filter alone. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORT_SLOTS);
	__type(key, __u32);
	__type(value, struct port_filter);
} port_filters SEC(".maps");

/* What frames of a device, or of one of its VLANs, are to the datapath, each by one
 * store: ifindex << 32 | what vlan_key() gives << 16 | slot | PORT_CARRIER. An entry is
 * found at its ifindex modulo the size, with a few probes: numbers of devices grow for
 * ever, but ports alive at one time hardly ever share a remainder. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORT_INDEX_SIZE);
	__type(key, __u32);
	__type(value, __u64);
} port_index SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FDB_BUCKETS);
	__type(key, __u32);
	__type(value, struct fdb_bucket);
} fdb SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, PORT_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} tx_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PORT_SLOTS *HOOKS); /* slot * HOOKS + hook */
	__type(key, __u32);
	__type(value, struct verdict_counts);
} verdicts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PORT_SLOTS);
	__type(key, __u32);
	__type(value, struct flush_counts);
} flushes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, LOSS_KINDS);
	__type(key, struct loss_key);
	__type(value, __u64);
} losses SEC(".maps");

/* Bulk TCP flows by hash: another part of the hash above, the low half of jiffies
 * at the last long frame below. Two flows that share a place take turns. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FLOWS);
	__type(key, __u32);
	__type(value, __u64);
} flows SEC(".maps");

#endif
