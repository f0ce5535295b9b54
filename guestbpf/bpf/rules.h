/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef RULES_H
#define RULES_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "guest.h"
#include "packet.h"

/*
 * The first rule that a frame meets. For each field a table says which rules its value
 * meets, as bits; the frame meets those that are in all tables. So a frame costs the
 * same whatever the number of rules.
 */

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__type(key, struct prefix_key);
	__type(value, struct rule_bits);
	__uint(max_entries, 2 * MAX_RULES + 6);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct rule_bits);
	__uint(max_entries, INDEX_INTERVALS + 3 * (2 * MAX_RULES + 1));
} values SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct intervals);
	__uint(max_entries, 65536);
} numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct rule);
	__uint(max_entries, MAX_RULES);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct count);
	__uint(max_entries, MAX_RULES);
} rule_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct source_key);
	__type(value, struct rate_window);
	__uint(max_entries, 65536);
} sources SEC(".maps");

/* What the rules ask for: bits of enum rule_field. Constant, so that the verifier
 * leaves the rest out. */
volatile const __u32 fields = 0;

static __always_inline void narrow(struct rule_bits *met, const struct rule_bits *by)
{
	if (!by)
		return; /* can't be: there is one for each value */
	met->word[0] &= by->word[0];
	met->word[1] &= by->word[1];
	met->word[2] &= by->word[2];
	met->word[3] &= by->word[3];
}

static __always_inline void narrow_value(struct rule_bits *met, __u32 index)
{
	narrow(met, bpf_map_lookup_elem(&values, &index));
}

static __always_inline void narrow_address(struct rule_bits *met, __u8 side, const struct packet *p,
					   const __u8 *addr)
{
	struct prefix_key key = { .bits = 8 * 20, .side = side, .family = p->family };

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	narrow(met, bpf_map_lookup_elem(&prefixes, &key));
}

static __always_inline struct intervals *find_interval(__u32 number)
{
	return bpf_map_lookup_elem(&numbers, &number);
}

static __always_inline void meet(const struct packet *p, __u32 len, struct rule_bits *met)
{
	const struct intervals *i;

	if (fields & FIELD_FROM)
		narrow_address(met, SIDE_FROM, p, p->from);
	if (fields & FIELD_TO)
		narrow_address(met, SIDE_TO, p, p->to);
	if (fields & FIELD_PROTO)
		narrow_value(met, p->family ? INDEX_PROTO + p->proto : INDEX_NO_IP);
	if (fields & FIELD_SPORT) {
		i = p->has_ports ? find_interval(p->sport) : (void *)0;
		narrow_value(met, i ? i->sport : INDEX_NO_SPORT);
	}
	if (fields & FIELD_DPORT) {
		i = p->has_ports ? find_interval(p->dport) : (void *)0;
		narrow_value(met, i ? i->dport : INDEX_NO_DPORT);
	}
	if (fields & FIELD_FLAGS)
		narrow_value(met, p->has_flags ? INDEX_FLAGS + p->flags : INDEX_NO_FLAGS);
	if (fields & FIELD_FRAGMENT)
		narrow_value(met, INDEX_FRAGMENT + p->fragment);
	if (fields & FIELD_LENGTH) {
		i = find_interval(len > 65535 ? 65535 : len);
		if (i)
			narrow_value(met, i->length);
	}
}

#define SECOND 1000000000LL

/* Says whether a frame is beyond the rate. CPUs don't wait for each other: each may
 * count one frame too few in a second. */
static __always_inline bool beyond(struct rate_window *w, __u64 rate, __u64 now)
{
	if ((__s64)(now - w->start) >= SECOND) {
		w->start = now;
		w->count = 1;
		return false;
	}
	if (w->count >= rate)
		return true;
	__sync_fetch_and_add(&w->count, 1);
	return false;
}

static __always_inline bool beyond_rate(struct rule *r, __u32 rule, const struct packet *p)
{
	__u64 now = bpf_ktime_get_ns();
	struct rate_window first = { now, 1 }, *w;
	struct source_key key = { .rule = rule, .family = p->family };

	if (!r->per_source)
		return beyond(&r->window, r->rate, now);
	__builtin_memcpy(&key.addr, p->from, sizeof(key.addr));
	w = bpf_map_lookup_elem(&sources, &key);
	if (w)
		return beyond(w, r->rate, now);
	bpf_map_update_elem(&sources, &key, &first, BPF_ANY);
	return false;
}

/* Gives the number of the lowest bit that is set in v, which is not 0. */
static __always_inline __u32 lowest(__u64 v)
{
	__u32 n = 0;

	v &= -v;
	n += v & 0xffffffff00000000ULL ? 32 : 0;
	n += v & 0xffff0000ffff0000ULL ? 16 : 0;
	n += v & 0xff00ff00ff00ff00ULL ? 8 : 0;
	n += v & 0xf0f0f0f0f0f0f0f0ULL ? 4 : 0;
	n += v & 0xccccccccccccccccULL ? 2 : 0;
	n += v & 0xaaaaaaaaaaaaaaaaULL ? 1 : 0;
	return n;
}

/* Gives what the first rule that a frame meets wants, and counts it there. */
static __always_inline enum rule_action apply_rules(const struct packet *p, __u32 len)
{
	struct rule_bits met = { { ~0ULL, ~0ULL, ~0ULL, ~0ULL } };
	struct count *count;
	struct rule *r;

	meet(p, len, &met);
	for (int i = 0; i <= MAX_RATED; i++) {
		__u32 rule;

		/* Not by a loop: Linux 5.10 refuses a stack's word with an index that varies. */
		if (met.word[0]) {
			rule = lowest(met.word[0]);
			met.word[0] &= met.word[0] - 1;
		} else if (met.word[1]) {
			rule = 64 + lowest(met.word[1]);
			met.word[1] &= met.word[1] - 1;
		} else if (met.word[2]) {
			rule = 128 + lowest(met.word[2]);
			met.word[2] &= met.word[2] - 1;
		} else if (met.word[3]) {
			rule = 192 + lowest(met.word[3]);
			met.word[3] &= met.word[3] - 1;
		} else {
			return ACTION_PASS;
		}
		r = bpf_map_lookup_elem(&rules, &rule);
		if (!r)
			return ACTION_PASS;
		if (r->rate && !beyond_rate(r, rule, p))
			continue;
		count = bpf_map_lookup_elem(&rule_counts, &rule);
		if (count) {
			count->frames++;
			count->bytes += len;
		}
		return r->action;
	}
	return ACTION_PASS;
}

#endif
