// Package poke makes a goroutine look again at its work.
package poke

// Wake sends on c, which has room for one, unless there is something in it already: the
// receiver looks at all that has come, so that several pokes may be one. It does not block.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
