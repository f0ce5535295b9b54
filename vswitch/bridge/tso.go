package bridge

import "github.com/safchain/ethtool"

// askTSO finds out whether a bridge's tap takes merged TCP segments. It takes what
// its guest's driver has asked for, which may change while it runs: a guest that
// attaches an XDP program switches it off. The kernel tells of each change by an
// RTM_NEWLINK that does not say what has changed. A device that does not answer is
// taken for one that does.
func (l *link) askTSO() {
	if l.kind != kindTap || l.master == 0 {
		return
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return
	}
	defer e.Close()
	features, err := e.Features(l.name)
	l.noTSO = err == nil && !features["tx-tcp-segmentation"] && !features["tx-tcp6-segmentation"]
}
