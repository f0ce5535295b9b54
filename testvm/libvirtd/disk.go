package libvirtd

import (
	"encoding/binary"
	"fmt"
	"os"
)

const (
	diskClusterBits = 16
	diskCluster     = 1 << diskClusterBits
	diskSize        = 1 << 20 // bytes that the guest sees
)

// EmptyDisk makes a qcow2 image of 1 MiB, in which QEMU keeps a guest's snapshots. It
// is what qemu-img makes, for which QEMU's package has no need.
func EmptyDisk(path string) error {
	// One cluster each for the header, the table of reference counts, the counts, and
	// the table of the guest's clusters, of which there are none.
	const header, refcountTable, refcounts, l1Table, clusters = 0, 1, 2, 3, 4
	image := make([]byte, clusters*diskCluster)
	type head struct {
		Magic, Version              uint32
		BackingOffset               uint64
		BackingSize, ClusterBits    uint32
		Size                        uint64
		Encryption, L1Size          uint32
		L1Table, RefcountTable      uint64
		RefcountClusters, Snapshots uint32
		SnapshotsOffset             uint64
	}
	if _, err := binary.Encode(image[header:], binary.BigEndian, head{
		Magic: 0x514649fb, Version: 2, ClusterBits: diskClusterBits, Size: diskSize,
		L1Size: 1, L1Table: l1Table * diskCluster,
		RefcountTable: refcountTable * diskCluster, RefcountClusters: 1,
	}); err != nil {
		return fmt.Errorf("making a disk: %w", err)
	}
	binary.BigEndian.PutUint64(image[refcountTable*diskCluster:], refcounts*diskCluster)
	for i := range clusters {
		binary.BigEndian.PutUint16(image[refcounts*diskCluster+2*i:], 1)
	}
	if err := os.WriteFile(path, image, 0o600); err != nil {
		return fmt.Errorf("making a disk: %w", err)
	}
	return nil
}
