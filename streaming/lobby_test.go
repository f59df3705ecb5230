package streaming

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Whoever connects without a token, as any user of the node can, takes no more than maxUnknown of
// crispd's descriptors, and keeps out no client with a token; clients that are served do not count.
func TestUnknownConnectionsAreBounded(t *testing.T) {
	overBoth(t, func(t *testing.T, connect func(*testing.T, string) remotecommand.Executor) {
		serving, end := make(chan bool, 1), make(chan bool)
		s := start(t, fake{exec: func(_ context.Context, _ string, cmd []string, st Streams) (int32, error) {
			fmt.Fprint(st.Stdout, cmd[0])
			if cmd[0] == "long" {
				serving <- true
				<-end
			}
			return 0, nil
		}})
		run := func(cmd string) error {
			resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c", Cmd: []string{cmd}, Stdout: true})
			if err != nil {
				return err
			}
			var out strings.Builder
			err = connect(t, resp.Url).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out})
			if err == nil && out.String() != cmd {
				err = fmt.Errorf("output is %q", out.String())
			}
			return err
		}
		long := make(chan error, 1)
		go func() { long <- run("long") }()
		<-serving

		const more = 5
		var unknown []net.Conn
		for range maxUnknown + more {
			c, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			unknown = append(unknown, c)
		}
		if err := run("short"); err != nil {
			t.Errorf("a client with a token: %v", err)
		}
		for i, c := range unknown[:more] { // the first to come are closed
			if _, err := io.ReadAll(c); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		}
		close(end)
		if err := <-long; err != nil {
			t.Errorf("a client that was being served: %v", err)
		}
	})
}
