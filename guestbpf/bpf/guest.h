/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef GUEST_H
#define GUEST_H

#include <linux/types.h>

/* What programs and Go share. */

/* What became of a frame. Numbers are stable and never used again. */
enum verdict {
	VERDICT_PASS = 0,
	VERDICT_DROP = 1,
	VERDICT_REFLECT = 2,
	VERDICT_FORWARD = 3,
	VERDICT_PASS_GROUP = 4,    /* reflect: a group address can't become the source */
	VERDICT_PASS_TOO_LONG = 5, /* l2fwd, l3fwd: longer than the other device takes */
	VERDICT_PASS_NO_DEVICE =
		6,              /* l2fwd, l3fwd: the other device is gone, or not one of these */
	VERDICT_PASS_SHORT = 7, /* no whole Ethernet header */
	/* Those to 16 are of l3fwd. */
	VERDICT_PASS_NOT_ROUTED = 8, /* not to this device, or no packet that this program routes */
	VERDICT_PASS_MALFORMED = 9,
	VERDICT_PASS_TTL = 10,
	VERDICT_PASS_SOURCE = 11, /* the way back to its source is another one */
	VERDICT_PASS_NO_ROUTE =
		12, /* for this machine, or a route that is the kernel's to follow */
	VERDICT_PASS_NO_NEIGHBOUR = 13,
	VERDICT_PASS_REFRESH = 14, /* shows the kernel that the neighbour is in use */
	VERDICT_PASS_OFF = 15,     /* forwarding is off, or not simple */
	VERDICT_PASS_EXPIRED = 16, /* nobody keeps the tables in step */
	VERDICT_SPREAD = 17,       /* handed to a CPU, where it meets another verdict */
	NUM_VERDICTS,
};

struct count {
	__u64 frames;
	__u64 bytes; /* from the destination address on, without FCS */
};

/* The other device of an l2fwd pair. */
struct l2fwd_peer {
	__u32 ifindex;
	__u32 max_len; /* of a frame, tags included */
	__u8 rewrite;  /* whether frames get these addresses */
	__u8 dest[6];
	__u8 source[6];
	__u8 pad[3];
};

/* The families that are routed, as bits. */
enum family_bit {
	ROUTE_IPV4 = 1 << 0,
	ROUTE_IPV6 = 1 << 1,
};

/* A device that packets come by: the one that a program is on, or a VLAN device on it. */
struct ingress {
	__u32 ifindex; /* 0: there is none */
	__u8 families; /* enum family_bit */
	__u8 pad;
	__u8 mac[6];
};

/* A VLAN device that packets may leave by. */
struct vlan_device {
	__u32 carrier; /* ifindex of the device below */
	__u32 vid;
};

struct route_key4 {
	__u32 bits;
	__u8 addr[4];
};

struct route_key6 {
	__u32 bits;
	__u8 addr[16];
};

/* What follows is enough for the simple ones; the others are the kernel's. */
struct route {
	__u32 ifindex;    /* 0: the kernel's */
	__u32 mtu;        /* 0: the device's */
	__u8 gateway[16]; /* zeros: none, the destination is a neighbour */
};

struct neighbour_key {
	__u32 ifindex;
	__u32 family;  /* 4 or 6 */
	__u8 addr[16]; /* of IPv4 the first four */
};

struct neighbour {
	__u32 mtu; /* of the device, for packets of the family */
	__u8 dest[6];
	__u8 source[6];
};

/* How long routes are held for true, in jiffies. */
struct route_lease {
	__u64 deadline;
	__u64 length;
};

#define MAX_ROUTERS 256 /* devices that packets are routed between, without VLANs */
#define NUM_VIDS    4096

#define MAX_RULES   256

/* Rules with a rate: each may be asked and say no, for every frame. */
#define MAX_RATED   16

/* Rules as bits, the first rule's being bit 0 of word 0. */
struct rule_bits {
	__u64 word[MAX_RULES / 64];
};

enum rule_action {
	ACTION_PASS,
	ACTION_DROP,
};

/* The frames within a rate, since the second began. */
struct rate_window {
	__u64 start; /* ns */
	__u64 count;
};

struct rule {
	struct rate_window window;
	__u64 rate; /* frames per second; 0: none */
	__u32 per_source;
	__u32 action;
	__u32 line;
	__u32 pad;
	__u8 text[256]; /* for people */
};

/* What rules ask for: a set of rules pays for these alone. */
enum rule_field {
	FIELD_FROM = 1 << 0,
	FIELD_TO = 1 << 1,
	FIELD_PROTO = 1 << 2,
	FIELD_SPORT = 1 << 3,
	FIELD_DPORT = 1 << 4,
	FIELD_FLAGS = 1 << 5,
	FIELD_FRAGMENT = 1 << 6,
	FIELD_LENGTH = 1 << 7,
};

enum fragment {
	FRAGMENT_NO,
	FRAGMENT_FIRST,
	FRAGMENT_LATER,
};

/* Where in the array of rule_bits those of a field's value begin. Those of ports and
 * lengths are found by struct intervals. */
enum rule_index {
	INDEX_PROTO = 0,
	INDEX_NO_IP = 256,
	INDEX_FLAGS = 257,
	INDEX_NO_FLAGS = 513,
	INDEX_FRAGMENT = 514,
	INDEX_NO_SPORT = 517,
	INDEX_NO_DPORT = 518,
	INDEX_INTERVALS = 519,
};

/* For a number from 0 to 65535, the index of its rule_bits as a port or a length. */
struct intervals {
	__u16 sport;
	__u16 dport;
	__u16 length;
	__u16 pad;
};

enum address_side {
	SIDE_FROM,
	SIDE_TO,
};

/* An address as a key. Family is 4, 6 or, in a frame that has none, 0. */
struct prefix_key {
	__u32 bits; /* of what follows */
	__u8 side;
	__u8 family;
	__u16 pad;
	__u8 addr[16];
};

/* A rule's source: an IPv4 address, or the 64 bits of an IPv6 address that one
 * network has. */
struct source_key {
	__u32 rule;
	__u32 family;
	__u64 addr;
};

#endif
