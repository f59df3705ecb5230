package test

import (
	"context"
	"path/filepath"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/proto"
)

// A plugin is an NRI plugin that makes the same adjustment to every container.
type plugin struct {
	stub   stub.Stub
	ready  chan struct{}
	adjust *api.ContainerAdjustment
}

func (p *plugin) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(p.ready)
	return nil, nil
}

func (p *plugin) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return proto.Clone(p.adjust).(*api.ContainerAdjustment), nil, nil
}

// pluginCmd is:
//
//	plugin join FILE   a plugin connects that answers each CreateContainer with FILE, a ContainerAdjustment in JSON
//	plugin leave       it disconnects
func (n *node) pluginCmd(ts *testscript.TestScript, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "join" && n.plugin == nil:
		p := &plugin{ready: make(chan struct{}), adjust: &api.ContainerAdjustment{}}
		if err := n.merge(p.adjust, args[1]); err != nil {
			return err
		}
		var err error
		p.stub, err = stub.New(p, stub.WithPluginName("script"), stub.WithPluginIdx("10"),
			stub.WithSocketPath(filepath.Join(n.state, "nri.sock")), stub.WithOnClose(func() {}))
		if err != nil {
			return err
		}
		if err := p.stub.Start(context.Background()); err != nil {
			return err
		}
		<-p.ready
		n.plugin = p
		ts.Defer(p.stub.Stop)
		return nil
	case len(args) == 1 && args[0] == "leave" && n.plugin != nil:
		n.plugin.stub.Stop()
		n.plugin = nil
		return nil
	}
	return errUsage
}
