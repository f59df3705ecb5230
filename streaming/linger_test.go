package streaming

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"
)

// endless is input that does not end before the test does.
type endless struct{ ctx context.Context }

func (e endless) Read(p []byte) (int, error) { return len(p), e.ctx.Err() }

type slow struct{ bytes.Buffer }

func (s *slow) Write(p []byte) (int, error) {
	time.Sleep(10 * time.Millisecond)
	return s.Buffer.Write(p)
}

// The output and exit code of a command that ends while its client keeps sending, and is far behind
// in reading, are delivered completely, and not lost with the connection.
func TestEndWhileTheClientSends(t *testing.T) {
	overBoth(t, func(t *testing.T, connect func(*testing.T, string) remotecommand.Executor) {
		said := bytes.Repeat([]byte("output of a command\n"), 4<<20/20)
		s := start(t, fake{exec: func(_ context.Context, _ string, _ []string, st Streams) (int32, error) {
			if _, err := st.Stdin.Read(make([]byte, 1)); err != nil {
				t.Errorf("read stdin: %v", err)
			}
			if _, err := st.Stdout.Write(said); err != nil {
				t.Errorf("write stdout: %v", err)
			}
			return 3, nil
		}})
		for range 5 {
			resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Stdin: true, Stdout: true})
			if err != nil {
				t.Fatal(err)
			}
			var out slow
			err = connect(t, resp.Url).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: endless{t.Context()}, Stdout: &out})
			var exit utilexec.ExitError
			if !errors.As(err, &exit) || exit.ExitStatus() != 3 || !bytes.Equal(out.Bytes(), said) {
				t.Errorf("the client got %d of %d bytes, and %v; want exit code 3", out.Len(), len(said), err)
			}
		}
	})
}
