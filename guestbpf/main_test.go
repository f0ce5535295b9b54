package guestbpf

import (
	"testing"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }
