package layer

import (
	"slices"
	"testing"
	"time"
)

func TestLatest(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		minutes []int // of commits, before now
		want    []bool
	}{
		"none":                  {nil, []bool{}},
		"long ago":              {[]int{1000, 1005, 1011}, []bool{true, true, false}},
		"the clock was ahead":   {[]int{5, 20, -100_000, -99_000}, []bool{true, false, true, false}},
		"the clock is behind":   {[]int{-80, -75, -60}, []bool{true, true, false}},
		"all at the same time":  {[]int{3, 3}, []bool{true, true}},
		"one in the future, so": {[]int{-5, 0, 4, 11}, []bool{true, true, true, false}},
	} {
		var at []time.Time
		for _, m := range c.minutes {
			at = append(at, now.Add(-time.Duration(m)*time.Minute))
		}
		if got := latest(at, now); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
