package streaming

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// A client must not be able to fill crispd's memory: an endless terminal size is read
// and discarded.
func TestEndlessSizeIsNotKept(t *testing.T) {
	endless := &widest{r: io.MultiReader(
		strings.NewReader(`{"Width":80,"Height":24}{"Width":`), io.LimitReader(digits{}, 32<<20))}
	sizes := make(chan remotecommand.TerminalSize, 4)
	readSizes(t.Context(), endless, sizes)
	if got := <-sizes; got.Width != 80 || got.Height != 24 {
		t.Errorf("the first size is %+v, want 80 by 24", got)
	}
	if got, more := <-sizes; more {
		t.Errorf("the endless one is %+v", got)
	}
	if endless.most > 64<<10 {
		t.Errorf("the reader was asked for %d bytes at once: it is kept in memory", endless.most)
	}
	if n, _ := endless.Read(make([]byte, 1)); n != 0 {
		t.Error("not all was read: the connection's other channels would stop")
	}
}

// Terminal sizes of a client whose command has no terminal are dropped. They must not block its
// input.
func TestUnwantedSizes(t *testing.T) {
	for _, protocol := range []string{"v5.channel.k8s.io", "v4.channel.k8s.io"} {
		t.Run(protocol, func(t *testing.T) {
			s := start(t, fake{exec: func(_ context.Context, _ string, _ []string, st Streams) (int32, error) {
				input := make([]byte, len("input"))
				_, err := io.ReadFull(st.Stdin, input)
				st.Stdout.Write(input)
				return 0, err
			}})
			resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Stdin: true, Stdout: true})
			if err != nil {
				t.Fatal(err)
			}
			ws := dialWebSocket(t, resp.Url, protocol)
			for range 3 {
				websocket.Message.Send(ws, append([]byte{resizeChannel}, `{"Width":80,"Height":24}`...))
			}
			websocket.Message.Send(ws, append([]byte{stdinChannel}, "input"...))
			for {
				var got []byte
				if err := websocket.Message.Receive(ws, &got); err != nil {
					t.Fatalf("the command's output: %v", err)
				}
				if len(got) > 1 && got[0] == stdoutChannel {
					if string(got[1:]) != "input" {
						t.Errorf("the command read %q", got[1:])
					}
					return
				}
			}
		})
	}
}

// A stream that was not requested is not there, whatever the protocol: an input that ended at once
// would end an attach, or the container's own input.
func TestOnlyRequestedStreams(t *testing.T) {
	for protocol, want := range map[string]byte{"v5.channel.k8s.io": errorChannel, "v4.channel.k8s.io": stderrChannel, "channel.k8s.io": stderrChannel} {
		t.Run(protocol, func(t *testing.T) {
			got := make(chan Streams, 2)
			s := start(t, fake{
				exec: func(_ context.Context, _ string, _ []string, st Streams) (int32, error) {
					got <- st
					return 0, nil
				},
				attach: func(_ context.Context, _ string, st Streams) error {
					got <- st
					return nil
				},
			})
			exec, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Stderr: true})
			if err != nil {
				t.Fatal(err)
			}
			attach, err := s.Attach(&cri.AttachRequest{ContainerId: "c1", Stdout: true})
			if err != nil {
				t.Fatal(err)
			}
			ws := dialWebSocket(t, exec.Url, protocol)
			var up []byte
			if err := websocket.Message.Receive(ws, &up); err != nil || len(up) != 1 || up[0] != want {
				t.Errorf("the first message is %v (err %v), want channel %d", up, err, want)
			}
			if st := <-got; st.Stdin != nil || st.Stdout != nil || st.Stderr == nil {
				t.Errorf("exec with stderr alone has %+v", st)
			}
			dialWebSocket(t, attach.Url, protocol)
			if st := <-got; st.Stdin != nil || st.Stdout == nil || st.Stderr != nil {
				t.Errorf("attach with stdout alone has %+v", st)
			}
		})
	}
}

// dialWebSocket connects to url until the test ends.
func dialWebSocket(t *testing.T, url, protocol string) *websocket.Conn {
	t.Helper()
	c, err := websocket.NewConfig(strings.Replace(url, "http", "ws", 1), "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	c.Protocol = []string{protocol}
	ws, err := c.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.Close() })
	ws.SetDeadline(time.Now().Add(20 * time.Second))
	return ws
}

// widest records the largest size that it is asked for.
type widest struct {
	r    io.Reader
	most int
}

func (w *widest) Read(p []byte) (int, error) {
	w.most = max(w.most, len(p))
	return w.r.Read(p)
}

type digits struct{}

func (digits) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '1'
	}
	return len(p), nil
}
