package keyring

import (
	"testing"
	"testing/synctest"
	"time"
)

// Credentials do not stay in memory when their time is over, whether or not the image is asked
// for again.
func TestExpiredCredentialsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Plugins{cache: map[string]cached{}}
		p.keep("a", nil, time.Minute)
		p.keep("b", nil, time.Hour)
		time.Sleep(time.Minute)
		p.keep("c", nil, time.Minute)
		if _, expired := p.cache["a"]; expired || len(p.cache) != 2 {
			t.Errorf("kept are %v", p.cache)
		}
	})
}
