package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/rootless"
	"github.com/crisp-cri/crisp/server/telemetry"
)

// A scrape is the listener that serves metrics besides the debug socket.
type scrape struct {
	log   *slog.Logger
	tel   *telemetry.Telemetry
	files *files
	retry time.Duration // how long await waits between two attempts; 0 = retryScrape

	mu     sync.Mutex
	at     string             // guarded by mu
	stop   func()             // nil = nowhere; guarded by mu
	giveUp context.CancelFunc // ends await's attempts; nil = none are made; guarded by mu
}

const retryScrape = 10 * time.Second

// await serves the metrics at address as soon as possible, maybe later: pods must run even if
// the host does not have the address yet, or connections of a dead process still use it. A later
// serve that succeeds replaces it.
func (m *scrape) await(ctx context.Context, address string) {
	err := m.serve(address)
	if err == nil {
		return
	}
	retry := cmp.Or(m.retry, retryScrape)
	m.log.Warn("metrics are not served yet", "address", address, "retry", retry, "err", err)
	ctx, cancel := context.WithCancel(ctx)
	m.mu.Lock()
	m.giveUp = cancel
	m.mu.Unlock()
	go periodic.Run(ctx, retry, func(ctx context.Context) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if ctx.Err() == nil && m.serveLocked(address) == nil {
			m.log.Info("metrics are served", "address", address)
		}
	})
}

// serve serves the metrics at address from now on, and nowhere else; "" means nowhere. If it
// fails, nothing changes.
func (m *scrape) serve(address string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.serveLocked(address)
}

func (m *scrape) serveLocked(address string) error {
	l, err := m.listenAt(address)
	if errors.Is(err, unix.EADDRINUSE) && m.stop != nil {
		// Our own listener may block it, as when 127.0.0.1:9090 becomes :9090.
		old := m.at
		m.endLocked()
		if l, err = m.listenAt(address); err != nil {
			back, berr := m.listenAt(old)
			if berr == nil {
				m.begin(old, back)
			}
			err = errors.Join(err, berr)
		}
	}
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	m.endLocked()
	if m.giveUp != nil {
		m.giveUp()
		m.giveUp = nil
	}
	m.begin(address, l)
	return nil
}

// listenAt listens at a metrics.address; it returns nil if that is "".
func (m *scrape) listenAt(address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix://")
	switch {
	case address == "":
		return nil, nil
	case isUnix:
		return m.files.listen(path)
	}
	return rootless.Listen(address)
}

func (m *scrape) begin(address string, l net.Listener) {
	if l == nil {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", m.tel.Handler())
	m.at, m.stop = address, serveHTTP(l, mux, m.log)
}

func (m *scrape) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.giveUp != nil {
		m.giveUp()
	}
	m.endLocked()
}

func (m *scrape) endLocked() {
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
}
