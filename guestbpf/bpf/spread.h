/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef SPREAD_H
#define SPREAD_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "guest.h"
#include "packet.h"

/* Which CPU's a frame is, by its flow: both directions are one's, and fragments go with
 * each other. */

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
	__uint(max_entries, 1); /* set when it is loaded */
} cpus SEC(".maps");

/* The CPUs' numbers. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1); /* set when it is loaded */
} cpu_list SEC(".maps");

volatile const __u32 num_cpus = 1;

static __always_inline __u32 scatter(__u32 v)
{
	v *= 0x9e3779b1;
	return v ^ (v >> 15);
}

static __always_inline __u32 scatter_address(const __u8 *addr)
{
	__u32 word[4], hash = 0;

	__builtin_memcpy(word, addr, sizeof(word));
#pragma unroll
	for (int i = 0; i < 4; i++)
		hash = scatter(hash + word[i]);
	return hash;
}

static __always_inline __u32 flow_hash(const struct packet *p)
{
	__u32 hash = scatter_address(p->from) + scatter_address(p->to) + p->proto;

	if (p->fragment == FRAGMENT_NO)
		hash += scatter(p->sport) + scatter(p->dport);
	return scatter(hash);
}

static __always_inline int redirect_to_cpu(const struct packet *p)
{
	__u32 n = ((__u64)flow_hash(p) * num_cpus) >> 32;
	__u32 *cpu = bpf_map_lookup_elem(&cpu_list, &n);

	return cpu ? bpf_redirect_map(&cpus, *cpu, XDP_PASS) : XDP_PASS;
}

#endif
