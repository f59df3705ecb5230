package streaming

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/websocket"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// tunnel serves a SPDY connection whose bytes travel in binary messages of a WebSocket, for
// clients behind proxies that do not support SPDY. handle gets the request for a SPDY upgrade as
// if it came from the inner end of the tunnel.
func tunnel(w http.ResponseWriter, r *http.Request, handle http.HandlerFunc) {
	inner := r.Clone(r.Context())
	server := websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			const want = portforward.WebsocketsSPDYTunnelingPortForwardV1
			if !slices.Contains(c.Protocol, want) {
				return fmt.Errorf("protocols %q are not supported: want %s", c.Protocol, want)
			}
			c.Protocol = []string{want}
			return nil
		},
		Handler: func(ws *websocket.Conn) {
			defer ws.Close()
			ws.PayloadType = websocket.BinaryFrame
			for name := range inner.Header {
				if strings.HasPrefix(name, "Sec-Websocket-") {
					inner.Header.Del(name)
				}
			}
			inner.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
			inner.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
			inner.Header.Set(httpstream.HeaderProtocolVersion, portforward.PortForwardV1Name)
			handle(&tunnelEnd{conn: ws, header: make(http.Header)}, inner)
		},
	}
	server.ServeHTTP(w, r)
}

// tunnelEnd is the response to an upgrade that has already happened: it sends nothing, and
// returns the tunnel when the connection is hijacked.
type tunnelEnd struct {
	conn   net.Conn
	header http.Header
}

func (t *tunnelEnd) Header() http.Header         { return t.header }
func (t *tunnelEnd) WriteHeader(int)             {}
func (t *tunnelEnd) Write(p []byte) (int, error) { return len(p), nil }

func (t *tunnelEnd) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return t.conn, bufio.NewReadWriter(bufio.NewReader(t.conn), bufio.NewWriter(t.conn)), nil
}
