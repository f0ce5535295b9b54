package kernel

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
)

// Where a bzImage's header (boot protocol 2.08, Linux 2.6.26) tells of its
// payload: see Documentation/arch/x86/boot.rst.
const (
	setupSectors  = 0x1f1
	headerMagic   = 0x202 // "HdrS"
	payloadOffset = 0x248
	payloadLength = 0x24c
)

// The kernel's compressions, by the bytes that they begin with.
var compressions = []struct {
	magic string
	open  func(io.Reader) (io.Reader, error)
}{
	{"\x02\x21\x4c\x18", func(r io.Reader) (io.Reader, error) { return lz4.NewReader(r), nil }},
	{"\x28\xb5\x2f\xfd", func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r) }},
	{"\xfd7zXZ\x00", func(r io.Reader) (io.Reader, error) { return xz.NewReader(r) }},
	{"\x1f\x8b\x08", func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
}

// extract gives the ELF file inside a bzImage. QEMU boots that by its PVH entry,
// without the decompression that makes half of an emulated guest's boot.
func extract(image []byte) ([]byte, error) {
	if len(image) < payloadLength+4 || string(image[headerMagic:headerMagic+4]) != "HdrS" {
		return nil, errors.New("extracting the kernel: not a bzImage")
	}
	start := (uint64(image[setupSectors])+1)*512 + uint64(binary.LittleEndian.Uint32(image[payloadOffset:]))
	end := start + uint64(binary.LittleEndian.Uint32(image[payloadLength:]))
	if end > uint64(len(image)) || end < start+4 {
		return nil, errors.New("extracting the kernel: its payload lies outside the image")
	}
	payload := image[start:end]
	for _, c := range compressions {
		if !bytes.HasPrefix(payload, []byte(c.magic)) {
			continue
		}
		// The payload's last four bytes are the length of what is in it.
		elf := make([]byte, binary.LittleEndian.Uint32(payload[len(payload)-4:]))
		r, err := c.open(bytes.NewReader(payload[:len(payload)-4]))
		if err == nil {
			_, err = io.ReadFull(r, elf)
		}
		if err != nil {
			return nil, fmt.Errorf("extracting the kernel: %w", err)
		}
		if !bytes.HasPrefix(elf, []byte("\x7fELF")) {
			return nil, errors.New("extracting the kernel: its payload is no ELF file")
		}
		return elf, nil
	}
	return nil, fmt.Errorf("extracting the kernel: unknown compression %x", payload[:4])
}
