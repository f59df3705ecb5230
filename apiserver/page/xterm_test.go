package page

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// The files of xterm.js are those of its npm package, unchanged. docs/dependencies.md tells how to
// update them.
func TestXterm(t *testing.T) {
	s := newServer(t, fakeAPI(hostilePod()), newFake())
	for name, want := range map[string][2]string{
		"xterm.mjs":    {"text/javascript; charset=utf-8", "b336ec65a086c056d4804b3d4c2347da5663d3f23c3f25be866467bd8857ad59"},
		"xterm.css":    {"text/css; charset=utf-8", "854a7c0fb70e8b1a083c16797ab827299fb18744f5ad34f227b48337e33293c6"},
		"LICENSE":      {"text/plain; charset=utf-8", "b569f629d00f2626a8100df2a1798210535621e42164dfd426a6fe5aac7b0ccd"},
		"package.json": {"application/json", "f5a0dde40a146d6c7a86b22daf6e5740517e5d708ec1d162197e0445431d8f4f"},
	} {
		w := get(s, "/page/static/xterm/"+name)
		sum := sha256.Sum256(w.Body.Bytes())
		if got := [2]string{w.Header().Get("Content-Type"), hex.EncodeToString(sum[:])}; w.Code != 200 || got != want {
			t.Errorf("%s: %d %v, want %v", name, w.Code, got, want)
		}
	}
}
