// Command webserver is the program in the demo's pod: a web server with one page, and the commands
// of the other containers, in one file, which is all that the image contains.
//
//	webserver [-port 80] [-parts DIR]     serve a page made of the files of DIR
//	webserver build DIR                   write the part of an init container there, and exit
//	webserver clock DIR                   rewrite the part of a sidecar there, every second
//	webserver whoami                      print the pod's names, for an exec
//
// The page shows variables of the environment: GREETING and POD_NAME, POD_NAMESPACE, POD_IP,
// NODE_NAME. NOTICE names a file whose text it shows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

var page = template.Must(template.New("page").Parse(`<!doctype html>
<title>crisp</title>
<h1>{{.Greeting}}</h1>
<p>Served by the pod {{.Pod}} in namespace {{.Namespace}}, at {{.Address}}, on node {{.Node}}.</p>
<p>{{.Notice}}</p>
<p>{{.Built}}</p>
<p>{{.Clock}}</p>
`))

// The parts of the page that other containers of the pod write.
const (
	builtPart = "built"
	clockPart = "clock"
)

// facts has the values that the container gets from the manifest.
type facts struct{ Greeting, Pod, Namespace, Address, Node string }

func gather() facts {
	env := func(name, otherwise string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return otherwise
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return facts{env("GREETING", "Hello from a pod"), env("POD_NAME", host), env("POD_NAMESPACE", "unknown"), env("POD_IP", "unknown"), env("NODE_NAME", "unknown")}
}

func main() {
	log.SetFlags(0) // the container's log has its own times
	log.SetOutput(os.Stdout)
	port := flag.String("port", "80", "TCP port to listen on")
	parts := flag.String("parts", "/parts", "directory of the parts of the page")
	flag.Parse()
	// The first process of a PID namespace ignores signals without a handler.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *port, *parts, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "webserver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, port, parts string, args []string) error {
	switch {
	case len(args) == 0:
		return serve(ctx, port, site(parts))
	case len(args) == 2 && args[0] == "build":
		return build(args[1])
	case len(args) == 2 && args[0] == "clock":
		return clock(ctx, args[1])
	case len(args) == 1 && args[0] == "whoami":
		return whoami(os.Stdout)
	}
	return fmt.Errorf("%q is not a command", args)
}

func serve(ctx context.Context, port string, s site) error {
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	log.Printf("serving on %s", listener.Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.show)
	mux.HandleFunc("GET /ready", s.ready)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: mux}
	ended := make(chan error, 1)
	context.AfterFunc(ctx, func() { ended <- server.Shutdown(context.WithoutCancel(ctx)) })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	log.Print("ended")
	return <-ended
}

// A site is the directory with a page's parts.
type site string

// part returns the text of a part, or of another file if its name is absolute.
func (s site) part(name string) (string, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(string(s), name)
	}
	text, err := os.ReadFile(name)
	return strings.TrimSpace(string(text)), err
}

func (s site) show(w http.ResponseWriter, r *http.Request) {
	log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
	content := struct {
		facts
		Notice, Built, Clock string
	}{facts: gather()}
	for name, text := range map[string]*string{os.Getenv("NOTICE"): &content.Notice, builtPart: &content.Built, clockPart: &content.Clock} {
		if name == "" {
			continue
		}
		var err error
		if *text, err = s.part(name); err != nil {
			log.Print(err)
			http.Error(w, "a part of the page is missing: "+name, http.StatusServiceUnavailable)
			return
		}
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if err := page.Execute(w, content); err != nil {
		log.Print(err)
	}
}

// ready answers whether the sidecar has written its part.
func (s site) ready(w http.ResponseWriter, _ *http.Request) {
	if _, err := s.part(clockPart); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

func build(dir string) error {
	log.Printf("building the page in %s", dir)
	return replace(filepath.Join(dir, builtPart), fmt.Sprintf("Built by the init container at %s.\n", time.Now().UTC().Format(time.TimeOnly)))
}

func clock(ctx context.Context, dir string) error {
	log.Printf("telling the time in %s", dir)
	for tick := time.NewTicker(time.Second); ; {
		if err := replace(filepath.Join(dir, clockPart), fmt.Sprintf("The sidecar's clock says %s.\n", time.Now().UTC().Format(time.TimeOnly))); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			log.Print("ended")
			return nil
		case <-tick.C:
		}
	}
}

// replace changes a file in one step: readers see the old text or the new one.
func replace(path, text string) error {
	next := path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(next, path)
}

func whoami(w io.Writer) error {
	f := gather()
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	var addrs []string
	for _, a := range interfaces {
		addrs = append(addrs, a.String())
	}
	_, err = fmt.Fprintf(w, "pod %s/%s, process %d, user %d, addresses %s\n", f.Namespace, f.Pod, os.Getpid(), os.Getuid(), strings.Join(addrs, " "))
	return err
}
