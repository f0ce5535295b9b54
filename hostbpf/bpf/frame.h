/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef FRAME_H
#define FRAME_H

#include <linux/if_ether.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

/* A frame as a hook has read it. The hooks differ in how they read a frame and
 * how they send it; what becomes of it is decided in one place. */
struct frame {
	const struct ethhdr *eth; /* NULL: the first buffer holds no whole header */
	__u32 len;  /* without tags, from the destination address on; 0: cut to fit later */
	__u32 tag;  /* that the port sees; see vlan.h */
	__u32 tags; /* bytes of tags before its type */
	bool multi_buffer;
	const void *end; /* of the first buffer */
	bool choose;     /* whether bulk TCP should go another way */
	__u32 avoid;     /* port_flags of ports that this hook can't send to */
};

/* Gives an address as a number, in the order of its bytes in memory. */
static __always_inline __u64 mac_key(const __u8 *mac)
{
	return *(const __u32 *)mac | (__u64) * (const __u16 *)(mac + 4) << 32;
}

#endif
