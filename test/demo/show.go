package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A demo is one instance of crisp with its own directory.
type demo struct {
	bin, dir string
	daemons  []*daemon // in the order of their start
}

func (d *demo) manifests() string { return filepath.Join(d.dir, "manifests") }
func (d *demo) socket() string    { return filepath.Join(d.dir, "run", "crisp.sock") }
func (d *demo) agentRoot() string { return filepath.Join(d.dir, "agent") }
func (d *demo) stack() string     { return filepath.Join(d.dir, "stack.yaml") }

// instance returns the flags with a crispd's directories.
func (d *demo) instance() []string {
	return []string{"--root", filepath.Join(d.dir, "lib"), "--state", filepath.Join(d.dir, "run"), "--config", filepath.Join(d.dir, "crispd.toml")}
}

// stack has all objects of the demo.
//
//go:embed stack.yaml
var stack string

// Names in stack.yaml.
const (
	image = "demo.local/webserver:1"
	port  = 8080
)

// show runs the demo.
func (d *demo) show(ctx context.Context) error {
	say("A separate crispd, in %s. It does not affect anything else on this machine.", d.dir)
	if err := os.WriteFile(filepath.Join(d.dir, "crispd.toml"), nil, 0o644); err != nil {
		return err
	}
	if err := d.start(ctx, "crispd", d.instance()...); err != nil {
		return err
	}
	if err := d.waitFor(ctx, "crispd to answer", func() bool { return d.quiet(ctx, "version") == nil }); err != nil {
		return err
	}

	say("An image from a file, without a registry or network.")
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

	// Without cgroups for QoS classes: kubepods would be left behind, as a kubelet leaves it.
	say("The agent, which runs pods on this machine as a kubelet does in a cluster.")
	if err := d.start(ctx, "crisp", "agent", "--runtime-endpoint", "unix://"+d.socket(), "--root", d.agentRoot(), "--manifests", d.manifests(),
		"--cgroups-per-qos=false"); err != nil {
		return err
	}
	if err := d.waitFor(ctx, "the agent to answer", func() bool { return d.quiet(ctx, "status") == nil }); err != nil {
		return err
	}
	return d.apply(ctx)
}

// apply applies the stack, with another port if that of the file is in use.
func (d *demo) apply(ctx context.Context) error {
	port, err := freePort(port)
	if err != nil {
		return err
	}
	text := strings.Replace(stack, "hostPort: 8080", "hostPort: "+strconv.Itoa(port), 1)
	say("A stack in one file: a server with its init container, sidecar and volume, and a ConfigMap.")
	command("cat %s", d.stack())
	fmt.Print(indent(text))
	if err := os.WriteFile(d.stack(), []byte(text), 0o644); err != nil {
		return err
	}
	if err := d.crisp(ctx, "apply", "-f", d.stack()); err != nil {
		return err
	}
	if err := d.crisp(ctx, "wait", "pod/web", "--for=Ready", "--timeout", patience.String()); err != nil {
		_ = d.crisp(context.WithoutCancel(ctx), "describe", "pod/web")
		return err
	}
	return d.visit(ctx, "http://127.0.0.1:"+strconv.Itoa(port)+"/")
}

// visit shows the pod from outside and from inside.
func (d *demo) visit(ctx context.Context, url string) error {
	say("The page, with lines from the manifest, the ConfigMap, the init container and the sidecar.")
	command("curl %s", url)
	body, err := fetch(ctx, url)
	if err != nil {
		return err
	}
	fmt.Print(indent(body))
	for _, step := range []struct {
		text string
		args []string
	}{
		{"What runs:", []string{"get", "pods", "-o", "wide"}},
		{"Its containers:", []string{"ps"}},
		{"What the server wrote:", []string{"logs", "web", "-c", "server"}},
		{"What the sidecar wrote:", []string{"logs", "web", "-c", "clock"}},
		{"A look from inside:", []string{"exec", "web", "-c", "server", "--", "/webserver", "whoami"}},
		{"What happened:", []string{"events", "--for", "pod/web"}},
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
	fmt.Printf("  export CRISP_RUNTIME_ENDPOINT=unix://%s CRISP_AGENT_ROOT=%s\n  %s logs -f web -c server\n", d.socket(), d.agentRoot(), filepath.Join(d.bin, "crisp"))
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

// freePort returns the wanted port, or another one if it is in use.
func freePort(wanted int) (int, error) {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", wanted))
	if errors.Is(err, syscall.EADDRINUSE) {
		l, err = net.Listen("tcp", ":0")
	}
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
