package oci

import (
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
)

// put appends a field to a message: a number, or the fields in it.
func put(m []byte, number protowire.Number, v any) []byte {
	switch v := v.(type) {
	case int:
		return protowire.AppendVarint(protowire.AppendTag(m, number, protowire.VarintType), uint64(v))
	case string:
		return protowire.AppendString(protowire.AppendTag(m, number, protowire.BytesType), v)
	default:
		return protowire.AppendBytes(protowire.AppendTag(m, number, protowire.BytesType), v.([]byte))
	}
}

// message makes one of pairs of a field's number and its value.
func message(pairs ...any) (m []byte) {
	for i := 0; i < len(pairs); i += 2 {
		m = put(m, protowire.Number(pairs[i].(int)), pairs[i+1])
	}
	return m
}

// Both messages in which shims tell counters come out in the units of Stats. The numbers are those of
// metrics.proto.
func TestShimStats(t *testing.T) {
	v1 := message(
		1, message(1, 2<<20, 2, 4<<20, 4, "2MB"),
		2, message(1, 3, 2, 100),
		3, message(1, message(1, 5000, 2, 2000, 3, 3000), 2, message(1, 7, 2, 6, 3, 5)),
		4, message(18, 400, 19, 500, 30, 100, 31, 50, 26, 8, 27, 2, 33, message(1, 4096, 2, 1000, 3, 1200, 4, 9), 34, message(1, 6096, 2, 1300), 35, message(2, 60)),
		99, message(1, 1), // a later field
	)
	got, err := decodeStats("types.containerd.io/io.containerd.cgroups.v1.Metrics", v1)
	want := Stats{
		CPU:       CPUStats{UsageNs: 5000, UserNs: 3000, SystemNs: 2000, Periods: 7, ThrottledPeriods: 6, ThrottledNs: 5},
		Memory:    MemoryStats{Usage: 1000, WorkingSet: 900, RSS: 500, Cache: 400, ActiveFile: 50, InactiveFile: 100, Kernel: 60, Limit: 4096, Available: 3196, Peak: 1200, FailCount: 9, PageFaults: 8, MajorPageFaults: 2},
		Swap:      SwapStats{Usage: 300, Limited: true, Limit: 2000, Available: 1700},
		Pids:      PidStats{Current: 3, Limit: 100},
		HugePages: []HugePageStats{{Size: "2MB", Usage: 2 << 20, Max: 4 << 20}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("v1 (-want +got): %s %v", diff, err)
	}
	v2 := message(
		1, message(1, 3),
		2, message(1, 5, 2, 3, 3, 2, 4, 7, 5, 6, 6, 1),
		4, message(1, 500, 2, 400, 13, 100, 14, 50, 18, 8, 19, 2, 32, 1000, 33, 4096, 34, 300, 35, 2000, 36, 1200),
		6, message(1, message(1, 8, 2, 16, 3, 11, 4, 12, 5, 13, 6, 14)),
		7, message(1, 2<<20, 2, 4<<20, 3, "2MB"),
	)
	got, err = decodeStats("io.containerd.cgroups.v2.Metrics", v2)
	want.CPU.ThrottledNs = 1000
	want.Memory.Kernel, want.Memory.FailCount = 0, 0
	want.Pids.Limit = 0
	want.IO.Devices = []DeviceIO{{Device: "8:16", ReadBytes: 11, WriteBytes: 12, Reads: 13, Writes: 14}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("v2 (-want +got): %s %v", diff, err)
	}
}

// FuzzShimStats decodes arbitrary counters of a shim: what comes of them is bounded and consistent, and
// can be sent on.
func FuzzShimStats(f *testing.F) {
	f.Add(true, message(1, message(1, 2<<20, 4, "\xff2MB"), 4, message(30, 100, 33, message(1, 4096, 2, 1000), 34, message(1, 6096, 2, 1300))))
	f.Add(false, message(2, message(1, 5), 4, message(13, 100, 32, 50), 6, message(1, message(1, 8, 2, 16)), 7, message(1, 1, 3, "2MB")))
	f.Fuzz(func(t *testing.T, first bool, data []byte) {
		kind := "io.containerd.cgroups.v2.Metrics"
		if first {
			kind = "io.containerd.cgroups.v1.Metrics"
		}
		s, err := decodeStats(kind, data)
		if err != nil {
			return
		}
		if len(s.IO.Devices) > mostStats || len(s.HugePages) > mostStats {
			t.Errorf("%d devices, %d sizes", len(s.IO.Devices), len(s.HugePages))
		}
		for _, h := range s.HugePages {
			if !utf8.ValidString(h.Size) || len(h.Size) > 32 {
				t.Errorf("the size %q", h.Size)
			}
		}
		if s.Memory.WorkingSet > s.Memory.Usage || s.Memory.Available > s.Memory.Limit || s.Swap.Available > s.Swap.Limit {
			t.Errorf("more than there is: %+v %+v", s.Memory, s.Swap)
		}
		if again, err := decodeStats(kind, data); err != nil || !cmp.Equal(again, s) {
			t.Errorf("decoded again: %+v, %v, was %+v", again, err, s)
		}
	})
}

// What is cut off or of another type is an error or is left out; it never is a wrong number.
func TestShimStatsThatAreNone(t *testing.T) {
	whole := message(2, message(1, 3, 2, 100))
	for n := range len(whole) {
		if _, err := decodeStats("io.containerd.cgroups.v2.Metrics", whole[:n]); n > 0 && err == nil {
			t.Errorf("%d bytes of %d are taken", n, len(whole))
		}
	}
	if got, err := decodeStats("io.containerd.cgroups.v2.Metrics", message(1, 7, 2, message(1, "x"))); err != nil || !cmp.Equal(got, Stats{}) {
		t.Errorf("fields of other types: %+v, %v", got, err)
	}
	if _, err := decodeStats("io.kata.Metrics", nil); err == nil {
		t.Error("an unknown message is taken")
	}
}
