package listen

import (
	"net/http"
	"net/http/pprof"
	"strings"
)

// withProfiles handles the paths below /debug/pprof/, as a kubelet does, and leaves the rest to
// h. Profiles expose memory: only the socket has them, whose users may do everything.
func withProfiles(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch name, is := strings.CutPrefix(r.URL.Path, "/debug/pprof/"); {
		case !is:
			h.ServeHTTP(w, r)
		case name == "profile":
			pprof.Profile(w, r)
		case name == "trace":
			pprof.Trace(w, r)
		default:
			pprof.Index(w, r)
		}
	})
}
