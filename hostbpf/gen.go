package hostbpf

// The asm headers that linux/types.h wants lie where Debian keeps them for each
// machine; a directory that is not there is no error.
//
//go:generate go tool bpf2go -go-package hostbpf -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type verdict -type hook -type port -type port_flags -type port_filter -type frame_kinds -type table_sizes -type port_index_bits -type switch_control -type fdb_bucket -type fdb_entry -type loss_key -type flush_counts -type verdict_counts hooks bpf/hooks.bpf.c
//go:generate go tool bpf2go -go-package hostbpf -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" losses bpf/losses.bpf.c
