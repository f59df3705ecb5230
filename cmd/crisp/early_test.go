package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// startRuntime starts an empty runtime where one was stopped.
func (n *node) startRuntime() {
	n.t.Helper()
	n.runtime = newRuntime()
	n.serve()
}

// An agent that starts before its runtime reports that, accepts objects, and runs them when the
// runtime starts, and again when it returns.
func TestBeforeTheRuntime(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	n.away()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	health := l.Addr().String()
	l.Close()
	n.flags = []string{"--healthz-address", health}
	n.manifest("web.yaml", webPod)
	n.manifest("gone.yaml", strings.Replace(webPod, "name: web}", "name: gone}", 1))
	n.agent()
	answers := func(path string, code int, text string) {
		t.Helper()
		var got string
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			resp, err := http.Get("http://" + health + path)
			if err != nil {
				got = err.Error()
				continue
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if got = fmt.Sprint(resp.StatusCode, " ", string(body)); resp.StatusCode == code && strings.Contains(got, text) {
				return
			}
		}
		t.Fatalf("%s answers %s, want %d %s", path, got, code, text)
	}
	answers("/healthz", 500, "runtime: the runtime has not answered yet")
	answers("/livez", 200, "ok")
	n.until("sources", `(?s)gone.*web`)
	n.expect(expectation{"get pods", 0, `(?s)gone +0/2 +Pending .*web +0/2 +Pending `})
	n.expect(
		expectation{"apply -f " + n.file("objects.yaml", strings.Replace(webPod, "name: web}", "name: applied}", 1)), 0, `pod/applied created`},
		expectation{"delete pod/applied --wait=false", 0, ``},
		expectation{"apply -f " + n.file("more.yaml", strings.Replace(webPod, "name: web}", "name: more}", 1)), 0, `pod/more created`},
		expectation{"get nodes -o yaml", 0, `RuntimeDoesNotAnswer: runtime at `},
	)
	n.manifest("gone.yaml", "")

	n.startRuntime()
	answers("/healthz", 200, "ok")
	n.until("get pods", `(?s)^NAME[^\n]*\nmore +2/2 +Running .*\nweb +2/2 +Running [^\n]*\n$`)

	n.away()
	answers("/healthz", 500, "runtime: ")
	answers("/livez", 200, "ok")
	n.startRuntime()
	answers("/healthz", 200, "ok")
	n.until("get pods", `web +2/2 +Running`) // an empty runtime: everything starts again
}
