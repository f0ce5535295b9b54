package guestbpf

// The asm headers that linux/types.h wants lie where Debian keeps them for each
// machine; a directory that is not there is no error.
//
//go:generate go tool bpf2go -go-package guestbpf -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type verdict -type count -type rule_bits -type rule_action -type rule -type rule_field -type fragment -type rule_index -type intervals -type address_side -type prefix_key -type family_bit -type ingress -type vlan_device -type route_key4 -type route_key6 -type route -type neighbour_key -type neighbour -type route_lease guest bpf/guest.bpf.c
