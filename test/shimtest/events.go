package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A publisher sends events to the socket of TTRPC_ADDRESS.
type publisher struct {
	mu     sync.Mutex
	client *ttrpc.Client // nil = it is not connected; guarded by mu
}

func newPublisher() *publisher { return &publisher{} }

// exit publishes the exit of a process.
func (p *publisher) exit(r *running) {
	id := r.execID
	if id == "" {
		id = r.container.id
	}
	p.publish("/tasks/exit", &events.TaskExit{
		ContainerID: r.container.id, ID: id, Pid: uint32(r.pid()), ExitStatus: r.code, ExitedAt: timestamppb.New(r.ended),
	})
}

// publish tries some times, since the receiver may be about to be replaced.
func (p *publisher) publish(topic string, event proto.Message) {
	b := load()
	if b.Silent {
		return
	}
	payload, err := anypb.New(event)
	if err != nil {
		fmt.Fprintln(os.Stderr, lines(err.Error()))
		return
	}
	payload.TypeUrl = strings.TrimPrefix(payload.TypeUrl, "type.googleapis.com/")
	count := 1
	if b.Twice {
		count = 2
	}
	request := &eventsapi.ForwardRequest{Envelope: &types.Envelope{
		Timestamp: timestamppb.Now(), Namespace: flags.namespace, Topic: topic, Event: payload,
	}}
	for range count {
		for try := range 5 {
			if err = p.forward(request); err == nil {
				break
			}
			time.Sleep(time.Duration(try+1) * 100 * time.Millisecond)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "event is lost:", lines(err.Error()))
		}
	}
}

func (p *publisher) forward(request *eventsapi.ForwardRequest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client == nil {
		conn, err := net.Dial("unix", os.Getenv("TTRPC_ADDRESS"))
		if err != nil {
			return err
		}
		p.client = ttrpc.NewClient(conn)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := eventsapi.NewTTRPCEventsClient(p.client).Forward(ctx, request)
	if err != nil {
		p.client.Close()
		p.client = nil
	}
	return err
}
