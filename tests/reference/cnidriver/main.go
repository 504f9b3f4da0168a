// cnidriver does to a CNI configuration list what a container runtime does, through libcni, one operation a call.
//
//	cnidriver -plugins DIR:DIR -conf FILE [-cache DIR] OPERATION [flags]
//
// Operations are add, check, del, gc, status. On success it prints {"result": …} (null but for add) and exits 0; on
// failure {"error": {"code", "msg", "details"}} and exits 1. Code 0 means that the error did not come from a plugin.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

type failure struct {
	Code    uint   `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details,omitempty"`
}

type reply struct {
	Result types.Result `json:"result"`
	Error  *failure     `json:"error,omitempty"`
}

func main() {
	plugins := flag.String("plugins", "", "folders of plugins, separated by ':'")
	conf := flag.String("conf", "", "file of the configuration list")
	cache := flag.String("cache", "", "folder of libcni's cache of results")
	container := flag.String("container", "", "container ID")
	netns := flag.String("netns", "", "path of the network namespace; may be empty")
	ifname := flag.String("ifname", "eth0", "name of the interface")
	args := flag.String("args", "", "CNI_ARGS, such as 'A=1;B=2'")
	capabilities := flag.String("capabilities", "", "capability arguments, a JSON object")
	valid := flag.String("valid", "", `for gc: JSON list of {"containerID", "ifname"}; "null" is a nil list, empty is no list at all`)
	timeout := flag.Duration("timeout", 60*time.Second, "for the whole operation")
	flag.Parse()

	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	result, err := run(ctx, flag.Arg(0), operation{
		plugins: *plugins, conf: *conf, cache: *cache, container: *container, netns: *netns, ifname: *ifname,
		args: *args, capabilities: *capabilities, valid: *valid,
	})
	answer := reply{Result: result}
	if err != nil {
		answer = reply{Error: describe(err)}
	}
	if encodeErr := json.NewEncoder(os.Stdout).Encode(answer); encodeErr != nil {
		fmt.Fprintln(os.Stderr, encodeErr)
		os.Exit(2)
	}
	if err != nil {
		os.Exit(1)
	}
}

type operation struct {
	plugins, conf, cache, container, netns, ifname, args, capabilities, valid string
}

func run(ctx context.Context, verb string, op operation) (types.Result, error) {
	list, err := libcni.ConfListFromFile(op.conf)
	if err != nil {
		return nil, err
	}
	cni := libcni.NewCNIConfigWithCacheDir(filepath.SplitList(op.plugins), op.cache, nil)
	runtime := libcni.RuntimeConf{ContainerID: op.container, NetNS: op.netns, IfName: op.ifname}
	if op.args != "" {
		for _, pair := range strings.Split(op.args, ";") {
			key, value, _ := strings.Cut(pair, "=")
			runtime.Args = append(runtime.Args, [2]string{key, value})
		}
	}
	if op.capabilities != "" {
		if err := json.Unmarshal([]byte(op.capabilities), &runtime.CapabilityArgs); err != nil {
			return nil, fmt.Errorf("-capabilities: %w", err)
		}
	}
	switch verb {
	case "add":
		return cni.AddNetworkList(ctx, list, &runtime)
	case "check":
		return nil, cni.CheckNetworkList(ctx, list, &runtime)
	case "del":
		return nil, cni.DelNetworkList(ctx, list, &runtime)
	case "status":
		return nil, cni.GetStatusNetworkList(ctx, list)
	case "gc":
		if op.valid == "" {
			return nil, cni.GCNetworkList(ctx, list, nil)
		}
		var valid libcni.GCArgs
		if err := json.Unmarshal([]byte(op.valid), &valid.ValidAttachments); err != nil {
			return nil, fmt.Errorf("-valid: %w", err)
		}
		return nil, cni.GCNetworkList(ctx, list, &valid)
	}
	return nil, fmt.Errorf("unknown operation %q", verb)
}

func describe(err error) *failure {
	var plugin *types.Error
	if errors.As(err, &plugin) {
		return &failure{Code: plugin.Code, Msg: err.Error(), Details: plugin.Details}
	}
	return &failure{Msg: err.Error()}
}
