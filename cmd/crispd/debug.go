package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/oci"
)

// debugPath is the socket that serves crispd's internals. Only root can use it: profiles expose
// memory.
func debugPath(state string) string { return filepath.Join(state, "debug.sock") }

// views are the views of the debug socket.
var views = []struct{ name, path, about string }{
	{"calls", "/calls", "the calls in progress, and the stage of each"},
	{"pulls", "/pulls", "current pulls: progress, source, waiting pods; and the last pulls"},
	{"goroutines", "/debug/pprof/goroutine?debug=2", "the stacks of all goroutines as text"},
	{"heap", "/debug/pprof/heap", "memory in use, for go tool pprof"},
	{"executor-goroutines", "/executor/goroutine?debug=2", "the same for the executor"},
	{"executor-heap", "/executor/heap", "the executor's memory in use, for go tool pprof"},
	{"allocs", "/debug/pprof/allocs", "all allocations since the start, for go tool pprof"},
	{"profile", "/debug/pprof/profile?seconds=%d", "a CPU profile, for go tool pprof; it takes --seconds"},
	{"trace", "/debug/pprof/trace?seconds=%d", "an execution trace, for go tool trace; it takes --seconds"},
	{"metrics", "/metrics", "the metrics in Prometheus' format"},
	{"config", "/config", "the configuration that the running crispd uses"},
}

// viewNames returns the arguments that "crispd debug" takes.
func viewNames() []string {
	var names []string
	for _, v := range views {
		names = append(names, v.name)
	}
	return names
}

// look fetches a view from the running crispd.
func look(c *config.Config, name string, seconds int, out io.Writer) error {
	for _, v := range views {
		if v.name != name {
			continue
		}
		path := v.path
		if seconds < 1 {
			return fmt.Errorf("--seconds %d: want 1 or more", seconds)
		}
		if strings.Contains(path, "%d") {
			path = fmt.Sprintf(path, seconds)
		}
		return fetch(debugPath(c.State), path, out)
	}
	return fmt.Errorf("unknown view %q: want one of %s", name, strings.Join(viewNames(), ", "))
}

func fetch(socket, path string, out io.Writer) error {
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := client.Get("http://crispd" + path)
	if err != nil {
		return fmt.Errorf("ask crispd at %s: %w", socket, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return fmt.Errorf("crispd answers %s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	_, err = io.Copy(out, resp.Body)
	return err
}

// serveDebug serves the debug socket until stop is called.
func (d *daemon) serveDebug(state string, log *slog.Logger) (stop func(), err error) {
	l, err := d.files.listenForRoot(debugPath(state))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.Handle("/metrics", d.telemetry.Handler())
	mux.HandleFunc("/calls", d.telemetry.ServeCalls)
	mux.HandleFunc("/pulls", func(w http.ResponseWriter, _ *http.Request) {
		_ = pulls.Write(w, append(d.images.Pulls(), d.images.RecentPulls()...), time.Now()) // the client may have left
	})
	mux.HandleFunc("/config", func(w http.ResponseWriter, _ *http.Request) { _ = d.config.Load().Write(w) })
	mux.HandleFunc("/executor/{profile}", func(w http.ResponseWriter, r *http.Request) { serveExecutorProfile(d.runtime, w, r) })
	return serveHTTP(l, mux, log), nil
}

// serveExecutorProfile serves a profile of the executor as /debug/pprof serves crispd's.
func serveExecutorProfile(rt *oci.Runtime, w http.ResponseWriter, r *http.Request) {
	debug, _ := strconv.Atoi(r.FormValue("debug")) // as net/http/pprof: 0 unless it is a number
	data, err := rt.ExecutorProfile(r.Context(), r.PathValue("profile"), debug)
	switch {
	case errors.Is(err, fault.NotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, fault.Invalid): // also of an executor of an earlier release
		http.Error(w, err.Error(), http.StatusNotImplemented)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		_, _ = w.Write(data) // the client may have left
	}
}

// serveHTTP serves h on l until stop is called.
func serveHTTP(l net.Listener, h http.Handler, log *slog.Logger) (stop func()) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	go func() {
		if err := s.Serve(l); err != http.ErrServerClosed {
			log.Error("http server ended", "address", l.Addr().String(), "err", err)
		}
	}()
	return func() {
		s.Close()
		l.Close() // Close does so only once l is being served
	}
}
