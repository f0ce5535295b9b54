package sieve

// The asm headers that linux/types.h wants lie where Debian keeps them for each
// machine; a directory that is not there is no error.
//
//go:generate go tool bpf2go -go-package sieve -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type sieve_shared sieve bpf/sieve.bpf.c
