package listen

import (
	"net/http"
	"net/http/pprof"
	"strings"
)

// withProfiles answers below /debug/pprof/, as a kubelet does, and leaves the rest to h.
// Profiles have whatever is in memory: they are for the socket, whose users may do everything.
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
