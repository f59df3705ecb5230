// Package testheap measures the memory that an input makes the code under test use. A fuzz target
// compares it with the size of the input: what an image or an archive decides must not cost out of
// proportion to what it weighs.
//
//	used := testheap.Allocated()
//	… read the input …
//	testheap.Bound{Base: 64 << 10, PerByte: 8}.Check(t, "allocated", testheap.Allocated()-used, len(data))
//
// The figures are of the whole process, so nothing else may run meanwhile.
package testheap

import (
	"runtime"
	"testing"
)

// A Bound is a function of the size of an input, in bytes or steps.
type Bound struct{ Base, PerByte uint64 }

// Of returns the bound for an input of size bytes.
func (b Bound) Of(size int) uint64 { return b.Base + b.PerByte*uint64(size) }

// Check fails the test if got is more than the bound for an input of size bytes; what names it.
func (b Bound) Check(t testing.TB, what string, got uint64, size int) {
	t.Helper()
	if limit := b.Of(size); got > limit {
		t.Errorf("%s for an input of %d bytes: %d, more than %d", what, size, got, limit)
	}
}

// Allocated returns the bytes allocated so far, garbage included.
func Allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// Live returns the bytes that are reachable now. It collects garbage, which takes a millisecond:
// where less was allocated than may be kept, it need not be called.
func Live() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Kept returns the bytes that only the value at v keeps reachable, and forgets it.
func Kept[T any](v *T) uint64 {
	with := Live()
	runtime.KeepAlive(v)
	var none T
	*v = none
	return with - min(with, Live())
}
