package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A demo is one instance of crisp, in a directory of its own.
type demo struct {
	bin, dir string
	daemons  []*daemon // in the order of their start
}

func (d *demo) manifests() string { return filepath.Join(d.dir, "manifests") }
func (d *demo) socket() string    { return filepath.Join(d.dir, "run", "crisp.sock") }

// instance are the flags that tell a crispd where it lives.
func (d *demo) instance() []string {
	return []string{"--root", filepath.Join(d.dir, "lib"), "--state", filepath.Join(d.dir, "run"), "--config", filepath.Join(d.dir, "crispd.toml")}
}

const image = "demo.local/webserver:1"

const manifest = `apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: server
    image: %s
    ports:
    - containerPort: 80
      hostPort: %d
    resources:
      limits: {memory: 64Mi}
    env:
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
`

// show is the demo.
func (d *demo) show(ctx context.Context) error {
	say("A crispd of its own, in %s. Nothing else on this machine is touched.", d.dir)
	if err := os.WriteFile(filepath.Join(d.dir, "crispd.toml"), nil, 0o644); err != nil {
		return err
	}
	if err := d.start(ctx, "crispd", d.instance()...); err != nil {
		return err
	}
	if err := d.waitFor(ctx, "crispd to answer", func() bool { return d.quiet(ctx, "version") == nil }); err != nil {
		return err
	}

	say("An image, from a file: no registry, no network.")
	archive := filepath.Join(d.dir, "webserver.tar")
	if err := packImage(filepath.Join(d.bin, "webserver"), archive); err != nil {
		return err
	}
	if err := d.crisp(ctx, "image", "load", "-i", archive); err != nil {
		return err
	}
	if err := d.crisp(ctx, "images"); err != nil {
		return err
	}

	say("The agent runs the pods of a directory.")
	if err := d.start(ctx, "crisp", "agent", "--runtime-endpoint", "unix://"+d.socket(), "--root", filepath.Join(d.dir, "agent"), "--manifests", d.manifests()); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	text := fmt.Sprintf(manifest, image, port)
	path := filepath.Join(d.manifests(), "web.yaml")
	command("cat > %s", path)
	fmt.Print(indent(text))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	return d.visit(ctx, "http://127.0.0.1:"+strconv.Itoa(port)+"/")
}

// visit looks at the pod, from outside and from inside.
func (d *demo) visit(ctx context.Context, url string) error {
	say("The page that the pod serves:")
	command("curl %s", url)
	var body string
	err := d.waitFor(ctx, "the page of "+url, func() bool {
		var err error
		body, err = fetch(ctx, url)
		return err == nil
	})
	if err != nil {
		_ = d.crisp(context.WithoutCancel(ctx), "get", "pods")
		return err
	}
	fmt.Print(indent(body))
	for _, step := range []struct {
		text string
		args []string
	}{
		{"What runs:", []string{"get", "pods", "-o", "wide"}},
		{"What it wrote:", []string{"logs", "web"}},
		{"A look from inside:", []string{"exec", "web", "--", "/webserver", "whoami"}},
	} {
		say("%s", step.text)
		if err := d.crisp(ctx, step.args...); err != nil {
			return err
		}
	}
	if os.Getenv("DEMO_ONCE") != "" {
		return nil
	}
	say("The pod serves %s until you press Ctrl-C. In another terminal:", url)
	fmt.Printf("  export CRISP_RUNTIME_ENDPOINT=unix://%s\n  %s logs -f web\n", d.socket(), filepath.Join(d.bin, "crisp"))
	<-ctx.Done()
	fmt.Println()
	return nil
}

func fetch(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(body), err
}

// freePort asks the kernel for a port that nobody listens on now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func say(format string, args ...any)     { fmt.Printf("\n"+format+"\n", args...) }
func command(format string, args ...any) { fmt.Printf("  $ "+format+"\n", args...) }

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ") + "\n"
}
