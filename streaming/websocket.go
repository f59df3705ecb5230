package streaming

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// The channels of channel.k8s.io: each message starts with the number of its
// channel. In v5 a message of 255 and a number closes that channel; the library's
// connection handles it once the protocol is agreed.
const (
	stdinChannel = iota
	stdoutChannel
	stderrChannel
	errorChannel
	resizeChannel
	channels
)

// The protocols, oldest first: those without a version report only a failure, as text. A client may
// also name none.
const (
	v1Binary = wsstream.ChannelWebSocketProtocol
	v1Base64 = wsstream.Base64ChannelWebSocketProtocol
	v4Binary = "v4." + v1Binary
	v4Base64 = "v4." + v1Base64
)

// serveWebSocket runs one Exec or Attach over any version of channel.k8s.io. cri-streaming would
// not do: its sessions outlive clients that send a malformed terminal size.
func (s *Server) serveWebSocket(w http.ResponseWriter, r *http.Request, o remotecommand.Options, run func(context.Context, Streams) (int32, error)) {
	types := make([]wsstream.ChannelType, channels) // IgnoreChannel is its zero value
	if o.Stdin {
		types[stdinChannel] = wsstream.ReadChannel
	}
	if o.Stdout {
		types[stdoutChannel] = wsstream.WriteChannel
	}
	if o.Stderr {
		types[stderrChannel] = wsstream.WriteChannel
	}
	types[errorChannel] = wsstream.WriteChannel
	types[resizeChannel] = wsstream.ReadChannel

	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		"": {Binary: true, Channels: types}, v1Binary: {Binary: true, Channels: types}, v1Base64: {Channels: types},
		v4Binary: {Binary: true, Channels: types}, v4Base64: {Channels: types},
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: types},
	})
	conn.SetIdleTimeout(s.idle())
	protocol, open, err := conn.Open(w, r)
	if err != nil {
		return // Open has sent the response
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()

	// An empty message tells the client that the connection is up. Before v5 it comes in the lowest
	// channel that we write, as from cri-streaming.
	up := errorChannel
	if protocol != remotecommand.StreamProtocolV5Name {
		up = slices.Index(types, wsstream.WriteChannel)
	}
	open[up].Write(nil)

	sizes := make(chan remotecommand.TerminalSize)
	go readSizes(ctx, open[resizeChannel], sizes)
	code, err := run(ctx, streams(ctx, o, open[stdinChannel], open[stdoutChannel], open[stderrChannel], sizes))
	st := status(code, err)
	switch {
	case protocol == remotecommand.StreamProtocolV5Name, protocol == v4Binary, protocol == v4Base64:
		data, err := json.Marshal(st)
		if err != nil { // strings and numbers always marshal
			panic(err)
		}
		open[errorChannel].Write(data)
	case st.Status == metav1.StatusFailure:
		io.WriteString(open[errorChannel], st.Message)
	}
}

// maxSize bounds one terminal size, in bytes of JSON.
const maxSize = 1024

// readSizes decodes the terminal sizes that the client sends. It must keep reading even if they
// are unwanted or malformed, or the connection's other channels would block.
func readSizes(ctx context.Context, r io.Reader, sizes chan<- remotecommand.TerminalSize) {
	defer close(sizes)
	bounded := &io.LimitedReader{R: r}
	d := json.NewDecoder(bounded)
	for {
		var size remotecommand.TerminalSize
		bounded.N = maxSize
		if err := d.Decode(&size); err != nil {
			io.Copy(io.Discard, r)
			return
		}
		select {
		case sizes <- size:
		case <-ctx.Done():
			return
		}
	}
}

// status returns the result of a command, as clients read it from the error channel.
func status(code int32, err error) metav1.Status {
	st := metav1.Status{Status: metav1.StatusSuccess}
	switch {
	case err != nil:
		st.Status, st.Reason, st.Code = metav1.StatusFailure, metav1.StatusReasonInternalError, http.StatusInternalServerError
		st.Message = err.Error()
	case code != 0:
		st.Status, st.Reason = metav1.StatusFailure, remotecommand.NonZeroExitCodeReason
		st.Message = fmt.Sprintf("command terminated with exit code %d", code)
		st.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{
			Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(int(code)),
		}}}
	}
	return st
}
