package podspec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestShares(t *testing.T) {
	for milli, want := range map[int64]uint64{0: 2, 1: 2, 250: 256, 1000: 1024, 1_000_000: 262144} {
		if got := CPUShares(milli); got != want {
			t.Errorf("%dm: %d, want %d", milli, got, want)
		}
	}
	for milli, want := range map[int64]int64{0: 0, 1: 1000, 500: 50_000, 2000: 200_000} {
		if got := CPUQuota(milli); got != want {
			t.Errorf("%dm: %d, want %d", milli, got, want)
		}
	}
}

func TestHugePages(t *testing.T) {
	got := HugePages(v1.ResourceList{
		"cpu": resource.MustParse("1"), "hugepages-2Mi": resource.MustParse("4Mi"), "hugepages-1Gi": resource.MustParse("2Gi"), "hugepages-64Ki": resource.MustParse("1Mi"),
	})
	if diff := cmp.Diff(Pages{"2MB": 4 << 20, "1GB": 2 << 30, "64KB": 1 << 20}, got); diff != "" {
		t.Error(diff)
	}
}
