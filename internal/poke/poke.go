// Package poke wakes a goroutine to check its work again.
package poke

// Wake sends on c, whose capacity is 1, unless c is full: the receiver handles everything that
// has come, so several wake-ups may be merged. It does not block.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
