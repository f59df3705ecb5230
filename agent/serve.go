package agent

import (
	"context"
	"path/filepath"

	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/readiness"
	"github.com/crisp-cri/crisp/apiserver/kubectl"
	"github.com/crisp-cri/crisp/apiserver/listen"
	"github.com/crisp-cri/crisp/apiserver/page"
)

// Serve says where the agent serves its API. It always serves the Unix socket, for root and the
// group "crisp".
type Serve struct {
	Socket   string // path of the Unix socket; "" for <Root>/agent.sock
	Listen   string // loopback address for kubectl, with the token in <Root>/token; <Root>/kubeconfig has both; "" for none
	ReadOnly string // loopback address for the paths of a kubelet's read-only port; "" for none
	Health   string // loopback address of the health checks; "" for none
	Page     bool   // a page for browsers at Listen, below /page/
	Version  string // of crisp
}

// SocketOf returns the default path of the Unix socket of an agent with this root.
func SocketOf(root string) string { return filepath.Join(root, "agent.sock") }

// serve serves the local API.
func (a *agent) serve(ctx context.Context, events *event.Store) (*listen.Server, error) {
	a.conditions.RuntimeChanged(readiness.State{Reason: "RuntimeDoesNotAnswer", Message: "runtime at " + a.o.Endpoint + " has not answered yet"})
	go a.notifyWatchers(ctx, events)
	h := listen.Handlers{All: kubectl.New(a.api, a.store, a.o.Serve.Version), Shown: a.api, Health: a.api.Health()}
	if a.o.Serve.Page {
		token, err := listen.Token(a.o.Root)
		if err != nil {
			return nil, err
		}
		p := page.New(ctx, page.Options{API: a.api, Runtime: a.api, Pulls: a.pulls, Address: a.o.Serve.Listen, Key: token, Log: a.o.Log})
		h.All, h.Page = p.Opener(h.All), p
	}
	return listen.Begin(ctx, h, listen.Options{
		Root: a.o.Root, Socket: a.o.Serve.Socket, Address: a.o.Serve.Listen, ReadOnly: a.o.Serve.ReadOnly, Health: a.o.Serve.Health, Log: a.o.Log,
	})
}

// notifyWatchers wakes the API's watchers when there are events and changes of the node.
func (a *agent) notifyWatchers(ctx context.Context, events *event.Store) {
	_, sub := events.Watch()
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.conditions.Node.Changed():
			a.api.Poke()
		case _, ok := <-sub.C():
			if !ok { // the subscription ends when it overflows: subscribe again
				_, sub = events.Watch()
			}
			a.api.Poke()
		}
	}
}
