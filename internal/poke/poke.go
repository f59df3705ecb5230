// Package poke makes a goroutine look again at its work.
package poke

// Wake sends on c, whose capacity is 1, unless c is full: the receiver handles everything
// that has come, so that several wake-ups may be one. It does not block.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
