package testheap

import "testing"

var sink []byte

// A meter that shows nothing would make every fuzz target that has one pass.
func TestMeters(t *testing.T) {
	const size = 10 << 20
	before := Allocated()
	sink = make([]byte, size)
	if got := Allocated() - before; got < size || got > 2*size {
		t.Errorf("%d bytes were allocated, of %d", got, size)
	}
	if got := Kept(&sink); got < size*9/10 || got > 2*size {
		t.Errorf("%d bytes were kept, of %d", got, size)
	}
	if sink != nil {
		t.Error("the value is still kept")
	}
}
