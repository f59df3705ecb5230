package shim

import (
	"bytes"
	"io"
	"math"
	"testing"
	"time"

	"github.com/containerd/containerd/api/events"
	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/ttrpc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Times that no record of ours can have become zero: the shim's clock may be anything.
func TestTimes(t *testing.T) {
	for _, tt := range []struct {
		seconds int64
		nanos   int32
		want    time.Time
	}{
		{at.Unix(), 123456789, at},
		{0, 0, time.Unix(0, 0).UTC()},
		{-1, 999999999, time.Unix(-1, 999999999).UTC()},
		{0, -1, time.Time{}},
		{0, 1e9, time.Time{}},
		{math.MaxInt64, 0, time.Time{}},
		{math.MinInt64, 0, time.Time{}},
		{253402300800, 0, time.Time{}},
	} {
		data := marshal(t, &timestamppb.Timestamp{Seconds: tt.seconds, Nanos: tt.nanos})
		if got, err := decodeTime(data); err != nil || !got.Equal(tt.want) {
			t.Errorf("%d s %d ns: %v (%v), want %v", tt.seconds, tt.nanos, got, err, tt.want)
		}
	}
}

// What start gets is what containerd's own package of shims reads.
func TestParams(t *testing.T) {
	p := Program{
		Path: "/bin/shim", Namespace: "k8s.io", ID: "c", Bundle: "/b", Events: "/run/events", Sockets: "/run/s",
		Options: &Any{"type.of/Options", []byte("x")},
	}
	got := &bootapi.BootstrapParams{}
	if err := proto.Unmarshal(p.params(), got); err != nil {
		t.Fatal(err)
	}
	if len(got.ProtoReflect().GetUnknown()) > 0 || got.InstanceID != p.ID || got.Namespace != p.Namespace || got.LogLevel != bootapi.LogLevel_LOG_LEVEL_INFO ||
		got.ContainerdTtrpcAddress != p.Events || got.GetSocketDir() != p.Sockets || len(got.Extensions) != 1 || got.Extensions[0].Value.TypeUrl != p.Options.TypeURL {
		t.Errorf("stdin is %v", got)
	}
}

// FuzzFrame reads arbitrary bytes from a shim: as frames, and as each message that a shim sends. What
// is read is what containerd's own modules read.
func FuzzFrame(f *testing.F) {
	exit := &events.TaskExit{ContainerID: "c", ID: "e", Pid: 4, ExitStatus: 5, ExitedAt: timestamppb.New(at)}
	event, err := anypb.New(exit)
	if err != nil {
		f.Fatal(err)
	}
	forward := marshal(f, &eventsapi.ForwardRequest{Envelope: &types.Envelope{Timestamp: timestamppb.New(at), Namespace: "n", Topic: exitTopic, Event: event}})
	f.Add(forward)
	f.Add(marshal(f, &ttrpc.Request{Service: "s", Method: "m", Payload: forward, TimeoutNano: 5, Metadata: []*ttrpc.KeyValue{{Key: "k", Value: "v"}}}))
	for _, m := range methods {
		f.Add(marshal(f, m.answer))
		f.Add(marshal(f, m.asked))
		f.Add(frame{1, responseFrame, response{payload: marshal(f, m.answer)}.encode()}.bytes())
	}
	f.Add(marshal(f, &bootapi.BootstrapResult{Version: 3, Address: "unix:///run/s", Protocol: "ttrpc"}))
	f.Add([]byte(`{"version":3,"address":"unix:///run/s","protocol":"ttrpc"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		reader := bytes.NewReader(data)
		for {
			before := reader.Len()
			fr, err := readFrame(reader, maxData)
			if err != nil {
				break
			}
			if again, err := readFrame(bytes.NewReader(fr.bytes()), maxData); err != nil || cmp.Diff(fr, again, cmp.AllowUnexported(frame{})) != "" || headerSize+len(fr.data) != before-reader.Len() {
				t.Errorf("%v becomes %v (%v)", fr, again, err)
			}
		}
		if b, err := parseBootstrap(data); err == nil && (b.path == "" || b.version < 2 || b.version > 3 || len(b.path) > maxPath) {
			t.Errorf("the answer %q is %+v", data, b)
		}
		if text := shorten(string(data)); len(text) > maxText+10 {
			t.Errorf("a text of %d bytes", len(text))
		}
		compare(t, data)
	})
}

// The options of checkpoints are what runc's shim reads, which keeps those that it has.
func TestRuncOptions(t *testing.T) {
	for _, had := range []*Any{nil, {RuncOptions, marshal(t, &options.Options{BinaryName: "/bin/crun", CriuWorkPath: "/old"})}} {
		got, o := RuncWork(had, "/work"), &options.Options{}
		if err := proto.Unmarshal(got.Value, o); err != nil || got.TypeURL != string(o.ProtoReflect().Descriptor().FullName()) {
			t.Fatal(got.TypeURL, err)
		}
		if o.CriuWorkPath != "/work" || had != nil && (o.BinaryName != "/bin/crun" || bytes.Contains(had.Value, []byte("/work"))) {
			t.Errorf("the options are %v", o)
		}
	}
	got, o := RuncCheckpoint("/work"), &options.CheckpointOptions{}
	if err := proto.Unmarshal(got.Value, o); err != nil || got.TypeURL != string(o.ProtoReflect().Descriptor().FullName()) {
		t.Fatal(got.TypeURL, err)
	}
	if diff := cmp.Diff(&options.CheckpointOptions{FileLocks: true, WorkPath: "/work"}, o, protocmp.Transform()); diff != "" {
		t.Errorf("the options (-want +got):\n%s", diff)
	}
}

// compare decodes data as each message, here and by containerd's modules. Values are compared after
// an encoding by theirs: a message that is sent in two parts is one to them, and the last part here.
func compare(t *testing.T, data []byte) {
	if hasGroups(data) {
		return // of proto2, which are malformed here
	}
	check := func(what string, m proto.Message, ours func([]byte) (same bool, err error)) {
		theirs := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, m)
		if _, err := ours(data); theirs == nil && err != nil {
			t.Errorf("%s %x: %v, and containerd reads %v", what, data, err, m)
		}
		if theirs != nil {
			return
		}
		if same, err := ours(marshal(t, m)); err != nil || !same {
			t.Errorf("%s %x: the values are not those of %v (%v)", what, data, m, err)
		}
	}
	small := func(ours int, theirs uint32) bool { return ours == int(theirs) || ours == 0 && theirs > math.MaxInt32 }
	when := func(ours time.Time, theirs *timestamppb.Timestamp) bool {
		if !theirs.IsValid() {
			return ours.IsZero()
		}
		return ours.Equal(theirs.AsTime())
	}
	var created taskv3.CreateTaskResponse
	check("PID", &created, func(data []byte) (bool, error) {
		pid, err := decodePID(data)
		return small(pid, created.Pid), err
	})
	var state taskv3.StateResponse
	check("State", &state, func(data []byte) (bool, error) {
		s, err := decodeState(data)
		known := state.Status >= 0 && state.Status <= 5
		return s.ID == state.ID && s.ExecID == state.ExecID && s.Bundle == state.Bundle && small(s.PID, state.Pid) && s.Terminal == state.Terminal &&
			s.Stdin == state.Stdin && s.Stdout == state.Stdout && s.Stderr == state.Stderr && (!known && s.Status == Unknown || int32(s.Status) == int32(state.Status)) &&
			(s.Exit == nil) == (s.Status != Stopped) && (s.Exit == nil || s.Exit.Status == state.ExitStatus && when(s.Exit.At, state.ExitedAt)), err
	})
	var deleted taskv3.DeleteResponse
	check("Delete", &deleted, func(data []byte) (bool, error) {
		e, err := deleteFields.decode(data)
		return small(e.PID, deleted.Pid) && e.Status == deleted.ExitStatus && when(e.At, deleted.ExitedAt), err
	})
	var stats taskv3.StatsResponse
	check("Stats", &stats, func(data []byte) (bool, error) {
		a, err := decodeStats(data)
		return (a == nil) == (stats.Stats == nil) && (a == nil || a.TypeURL == stats.Stats.TypeUrl && bytes.Equal(a.Value, stats.Stats.Value)), err
	})
	var pids taskv3.PidsResponse
	check("Pids", &pids, func(data []byte) (bool, error) {
		n, err := decodeProcesses(data)
		return n == len(pids.Processes), err
	})
	var sandbox sandboxapi.SandboxStatusResponse
	check("SandboxStatus", &sandbox, func(data []byte) (bool, error) {
		s, err := decodeSandbox(data)
		return s.ID == sandbox.SandboxID && small(s.PID, sandbox.Pid) && (s.Exit == nil) == (s.Status == Running) && (s.Exit == nil || when(s.Exit.At, sandbox.ExitedAt)), err
	})
	var connection taskv3.ConnectResponse
	check("Connect", &connection, func(data []byte) (bool, error) {
		pid, err := decodePID(data)
		return small(pid, connection.ShimPid), err
	})
	var resp ttrpc.Response
	check("response", &resp, func(data []byte) (bool, error) {
		r, err := decodeResponse(data)
		return uint32(r.code) == uint32(resp.GetStatus().GetCode()) && r.text == resp.GetStatus().GetMessage() && bytes.Equal(r.payload, resp.Payload), err
	})
	var req ttrpc.Request
	check("request", &req, func(data []byte) (bool, error) {
		q, err := decodeRequest(data)
		return q.service == req.Service && q.method == req.Method && bytes.Equal(q.payload, req.Payload), err
	})
	var forward eventsapi.ForwardRequest
	check("event", &forward, func(data []byte) (bool, error) {
		e, known, err := decodeForward(data)
		envelope := forward.GetEnvelope()
		event, theirs := envelope.GetEvent().UnmarshalNew()
		if theirs != nil {
			return !known || envelope.GetEvent().GetValue() != nil, nil
		}
		exit, _ := event.(*events.TaskExit)
		if exit == nil || envelope.GetTopic() != exitTopic || exit.ContainerID == "" {
			return !known || e.Exit == nil, err
		}
		return known && e.Namespace == envelope.GetNamespace() && e.ContainerID == exit.ContainerID && e.Exit.Status == exit.ExitStatus && when(e.Exit.At, exit.ExitedAt), err
	})
}

// hasGroups reports whether a message, or what may be one in it, has groups.
func hasGroups(data []byte) bool {
	for len(data) > 0 {
		_, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return false
		}
		if wire == protowire.StartGroupType {
			return true
		}
		m := protowire.ConsumeFieldValue(1, wire, data[n:])
		if m < 0 {
			return false
		}
		if inner, k := protowire.ConsumeBytes(data[n:]); wire == protowire.BytesType && k > 0 && hasGroups(inner) {
			return true
		}
		data = data[n+m:]
	}
	return false
}

// Frames are read as they arrive, and no more is allocated than has arrived.
func TestFrameInPieces(t *testing.T) {
	want := frame{5, responseFrame, bytes.Repeat([]byte("x"), 100000)}
	got, err := readFrame(io.MultiReader(bytes.NewReader(want.bytes()[:3]), bytes.NewReader(want.bytes()[3:5000]), bytes.NewReader(want.bytes()[5000:])), maxData)
	if err != nil || cmp.Diff(want, got, cmp.AllowUnexported(frame{})) != "" {
		t.Errorf("the frame is %d bytes (%v)", len(got.data), err)
	}
	allocated := testing.AllocsPerRun(1, func() {
		if _, err := readFrame(bytes.NewReader([]byte{0, 0x3f, 0, 0, 0, 0, 0, 1, responseFrame, 0, 1}), maxData); err != io.ErrUnexpectedEOF {
			t.Errorf("the error is %v", err)
		}
	})
	if allocated > 20 {
		t.Errorf("%v allocations", allocated)
	}
}
