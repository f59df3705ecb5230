package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/sdnotify"
	"github.com/crisp-cri/crisp/internal/unixsock"
	"github.com/crisp-cri/crisp/server"
)

const (
	// stopGrace is how long calls in flight may take to finish when crispd stops.
	stopGrace = 5 * time.Second
	// stopLimit is how long crispd takes to end, from the signal on. A plugin that hangs must not
	// keep it, nor a client or a disk: what still runs then is left to the next crispd, which takes
	// over from one that was killed as well.
	stopLimit = 10 * time.Second
	// gcPercent keeps crispd's heap smaller than Go's default would, for little CPU time: the
	// heap is a few MiB and crispd mostly waits.
	gcPercent = 50
)

// serve runs crispd until a signal stops it.
//
// The socket comes first: an early client waits for its response instead of being refused. The
// service manager gets READY once crispd handles calls.
func serve(c *config.Config, src config.Source) error {
	log, begin := newLog(c.Log), time.Now()
	debug.SetGCPercent(gcPercent)
	kernel.LimitHeap(log)
	unix.Umask(0o022)
	stored, err := sdnotify.Kept()
	if err != nil {
		log.Warn("descriptors were not taken over", "err", err)
	}

	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer cancel()
	// Before crispd examines the containers: a SIGHUP meanwhile would kill it.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP)
	defer signal.Stop(hangups)
	// The reader of the log, journald or a pipe, may exit: that must not kill crispd.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)

	files, err := takeFiles(c.Root, c.State)
	if err != nil {
		return err
	}
	defer files.close()
	stacks := filepath.Join(c.State, "goroutines.txt")
	defer dumpOnSignal(stacks, log)()
	context.AfterFunc(ctx, func() { endAnyway(stacks, log) })
	socket, err := files.listen(c.Socket)
	if err != nil {
		return err
	}
	defer socket.Close() // also removes the file

	sdnotify.Notify("STATUS=looking at what runs")
	d, err := wire(ctx, c, files, stored, log)
	if err != nil {
		return err
	}
	stopDebug, err := d.serveDebug(c.State, log)
	if err != nil {
		return errors.Join(err, d.server.Close(), d.close())
	}
	defer stopDebug()
	stopCAdvisor, err := serveCAdvisor(c, files, d.server, log)
	if err != nil {
		return errors.Join(err, d.server.Close(), d.close())
	}
	defer stopCAdvisor()
	d.scrape.await(ctx, c.Metrics.Address)
	g := grpc.NewServer(server.Interceptors(d.server)...)
	server.Register(g, d.server)
	if err := d.server.Start(ctx); err != nil {
		return errors.Join(err, d.close())
	}

	go unixsock.Watch(ctx, log, files.look)
	served := d.serving(g, socket)
	log.Info("crispd serves", "version", version, "socket", c.Socket, "root", c.Root, "state", c.State, "boot", d.records.Boot().String(), "took", time.Since(begin))
	sdnotify.Notify("READY=1\nSTATUS=" + d.status())
	if interval := sdnotify.Interval(); interval > 0 {
		alive := func(ctx context.Context) error { return server.Ping(ctx, c.Socket) }
		go sdnotify.Watchdog(ctx, interval, alive, d.status, log)
	}

	for {
		select {
		case err := <-served:
			return errors.Join(fmt.Errorf("serve on %s: %w", c.Socket, err), d.close())
		case <-hangups:
			sdnotify.Reloading()
			d.reload(ctx, src, log)
			sdnotify.Notify("READY=1\nSTATUS=" + d.status())
		case <-ctx.Done():
			log.Info("crispd ends")
			sdnotify.Notify("STOPPING=1\nSTATUS=containers run on")
			return d.stop(g)
		}
	}
}

// serving serves CRI. The channel gets what ends that.
func (d *daemon) serving(g *grpc.Server, l net.Listener) <-chan error {
	ended := make(chan error, 2)
	go func() { ended <- g.Serve(sure(d.kubelets.watch(l))) }()
	if d.cutOff != nil {
		go func() {
			<-d.cutOff
			ended <- errors.New("slirp4netns has ended: the next crispd starts it again")
		}()
	}
	return ended
}

// status returns a line for the service manager to show.
func (d *daemon) status() string {
	return fmt.Sprintf("%d sandboxes, %d containers", len(d.runtime.Sandboxes()), len(d.runtime.Containers()))
}

// stop ends the calls and closes the packages, and then records a clean shutdown.
func (d *daemon) stop(g *grpc.Server) error {
	ended := make(chan struct{})
	go func() {
		g.GracefulStop()
		close(ended)
	}()
	over := time.After(stopGrace) // what Close undoes may take as long
	err := d.server.Close()       // ends the event streams, for which GracefulStop would wait
	select {
	case <-ended:
	case <-over:
		g.Stop()
		<-ended
	}
	err = errors.Join(err, d.close())
	if err == nil {
		err = d.records.MarkClean()
	}
	return err
}

// endAnyway ends crispd after stopLimit, and leaves what runs then in the file stacks.
func endAnyway(stacks string, log *slog.Logger) {
	time.Sleep(stopLimit)
	time.AfterFunc(time.Second, func() { os.Exit(1) }) // the disk or the reader of the log may hang, too
	log.Error("crispd ended before its work did", "after", stopLimit, "work", stacks, "err", writeStacks(stacks))
	os.Exit(1)
}

// writeStacks writes the stacks of all goroutines, 64 MB of them at most, to path.
func writeStacks(path string) error {
	var stacks bytes.Buffer
	err := pprof.Lookup("goroutine").WriteTo(&stacks, 2)
	return errors.Join(err, os.WriteFile(path, stacks.Bytes(), 0o600))
}

// dumpOnSignal writes the stacks of all goroutines to path at each SIGUSR1.
func dumpOnSignal(path string, log *slog.Logger) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGUSR1)
	go func() {
		for range signals {
			if err := writeStacks(path); err != nil {
				log.Error("goroutines not written", "err", err)
				continue
			}
			log.Info("goroutines written", "path", path)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

// serveCAdvisor serves the kubelet's cAdvisor until stop is called. Only root may ask: the
// answers include the containers' environment.
func serveCAdvisor(c *config.Config, f *files, s *server.Server, log *slog.Logger) (stop func(), err error) {
	if c.CAdvisorSocket == config.None {
		return func() {}, nil
	}
	l, err := f.listenForRoot(c.CAdvisorSocket)
	if err != nil {
		return nil, err
	}
	g := grpc.NewServer(server.AuxServerOptions(s)...)
	server.RegisterCAdvisor(g, s)
	go func() {
		if err := g.Serve(l); err != nil {
			log.Error("cAdvisor is no longer served", "socket", c.CAdvisorSocket, "err", err)
		}
	}()
	return g.Stop, nil
}
