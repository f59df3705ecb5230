package notify

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
)

func drain(s *Subscription[int]) []int {
	var got []int
	for v := range s.C() {
		got = append(got, v)
	}
	return got
}

func TestEverySubscriberGetsEverythingInOrder(t *testing.T) {
	var h Hub[int]
	if h.HasSubscribers() {
		t.Error("a hub without subscribers has some")
	}
	h.Publish(-1) // without a subscriber
	a, b := h.Subscribe(10), h.Subscribe(10)
	for i := range 10 {
		h.Publish(i)
	}
	if !h.HasSubscribers() {
		t.Error("a hub with two subscribers has none")
	}
	a.Close()
	b.Close()
	b.Close()
	want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	if got := drain(a); !slices.Equal(got, want) {
		t.Errorf("first subscriber got %v, want %v", got, want)
	}
	if got := drain(b); !slices.Equal(got, want) {
		t.Errorf("second subscriber got %v, want %v", got, want)
	}
	if a.Err() != nil {
		t.Errorf("a closed subscription says %v, want nil", a.Err())
	}
}

// A hanging reader must neither stop the others nor get a stream with a gap.
func TestSlowSubscriberIsDropped(t *testing.T) {
	var h Hub[int]
	slow, quick := h.Subscribe(2), h.Subscribe(10)
	for i := range 4 {
		h.Publish(i)
	}
	quick.Close()
	if got := drain(slow); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("slow subscriber got %v, want what its buffer holds: [0 1]", got)
	}
	if !errors.Is(slow.Err(), fault.Unavailable) {
		t.Errorf("slow subscriber got %v, want fault.Unavailable", slow.Err())
	}
	if got := drain(quick); len(got) != 4 {
		t.Errorf("quick subscriber got %v, want all four", got)
	}
	if h.Dropped() != 1 {
		t.Errorf("dropped %d, want 1", h.Dropped())
	}
	slow.Close() // a late Close: no error, no panic
}

func TestConcurrentUse(t *testing.T) {
	var h Hub[int]
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s := h.Subscribe(1000)
			for i := range 100 {
				h.Publish(i)
			}
			s.Close()
			if n := len(drain(s)); n < 100 {
				t.Errorf("got %d values, want at least my own 100", n)
			}
		})
	}
	wg.Wait()
}
