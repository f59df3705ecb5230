package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// A shortOfMemory has connections whose writes fail while is is true.
type shortOfMemory struct {
	net.Listener
	is *atomic.Bool
}

func (l shortOfMemory) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return writesFail{conn, l.is}, err
}

type writesFail struct {
	net.Conn
	is *atomic.Bool
}

func (c writesFail) Write(b []byte) (int, error) {
	if c.is.Load() {
		return 0, &net.OpError{Op: "write", Net: "unix", Err: syscall.ENOBUFS}
	}
	return c.Conn.Write(b)
}

// A kubelet whose answer could not be written sees its connection end, and reconnects.
func TestAnswerThatCannotBeWritten(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	var short atomic.Bool
	g := grpc.NewServer()
	go g.Serve(sure(shortOfMemory{l, &short}))
	defer g.Stop()
	conn, err := grpc.NewClient("unix://"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The method does not exist; that error is an answer like any other.
	call := func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return fmt.Sprint(conn.Invoke(ctx, "/none/none", &emptypb.Empty{}, &emptypb.Empty{}, grpc.WaitForReady(true)))
	}
	answered := call()
	if !strings.Contains(answered, "Unimplemented") {
		t.Fatal(answered)
	}
	short.Store(true)
	if got := call(); !strings.Contains(got, "Unavailable") {
		t.Errorf("the call whose answer was lost gave %v", got)
	}
	short.Store(false)
	if got := call(); got != answered {
		t.Errorf("the call after it gave %v", got)
	}
}
