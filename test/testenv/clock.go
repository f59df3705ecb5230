package testenv

import (
	"time"
	"unsafe"
)

// Slept returns t as it would be if the machine had slept for d since: the time of day is d
// before now's, and the monotonic clock has not moved. t is from time.Now, and d in seconds.
func Slept(t time.Time, d time.Duration) time.Time {
	// The first word of a time.Time with both clocks has the seconds of the day's, above 30 bits
	// of nanoseconds.
	*(*uint64)(unsafe.Pointer(&t)) -= uint64(d/time.Second) << 30
	return t
}
