// Command webserver is what the demo runs in a pod: a static web server of one
// page, in one file, with nothing else in its image.
//
//	webserver [-port 80]   serve
//	webserver whoami       say which pod this is; something to exec
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
	"strings"
	"syscall"
	"time"
)

var page = template.Must(template.New("page").Parse(`<!doctype html>
<title>crisp</title>
<h1>Hello from a pod</h1>
<p>This page was served by the pod {{.Pod}} in namespace {{.Namespace}},
at {{.Address}}, on node {{.Node}}. No containerd, no runc, no pause container.</p>
`))

// facts are what the manifest tells the container about itself.
type facts struct{ Pod, Namespace, Address, Node string }

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
	return facts{env("POD_NAME", host), env("POD_NAMESPACE", "unknown"), env("POD_IP", "unknown"), env("NODE_NAME", "unknown")}
}

func main() {
	log.SetFlags(0) // the log of a container has its own times
	log.SetOutput(os.Stdout)
	port := flag.String("port", "80", "TCP port to listen on")
	flag.Parse()
	var err error
	switch flag.Arg(0) {
	case "":
		err = serve(*port)
	case "whoami":
		err = whoami(os.Stdout)
	default:
		err = fmt.Errorf("%q is not a command", flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "webserver:", err)
		os.Exit(1)
	}
}

func serve(port string) error {
	// The first process of a PID namespace has no default for signals.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	log.Printf("serving on %s", listener.Addr())
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(answer)}
	context.AfterFunc(ctx, func() { server.Shutdown(context.WithoutCancel(ctx)) })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	log.Print("ended")
	return nil
}

func answer(w http.ResponseWriter, r *http.Request) {
	log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
	if r.URL.Path != "/" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if err := page.Execute(w, gather()); err != nil {
		log.Print(err)
	}
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
