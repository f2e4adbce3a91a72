// Watches a commit on its way to the catalog, inside the driver's JVM. Compiled by Janino like IcebergBridge.java.
package lakewarden;

import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.MetadataUpdate;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

public final class IcebergWatch {
  public Watch watch(Table table) {
    return new Watch(table);
  }

  /** The operations of one table, which know whether a commit was handed to the catalog. */
  public static final class Watch implements TableOperations {
    private final Table table;
    private final TableOperations real;
    private volatile boolean sent = false;
    private volatile long made = -1L;

    Watch(Table table) {
      this.table = table;
      this.real = ((HasTableOperations) table).operations();
    }

    /** The table to commit through. */
    public Table table() {
      return table instanceof BaseTable
          ? new BaseTable(this, table.name(), ((BaseTable) table).reporter())
          : new BaseTable(this, table.name());
    }

    public boolean sent() {
      return sent;
    }

    /** The snapshot that was committed, also one that others expired right after; -1 for none. */
    public long made() {
      return made;
    }

    public void commit(TableMetadata base, TableMetadata metadata) {
      sent = true;
      Set added = added(metadata);
      try {
        real.commit(base, metadata);
      } catch (CommitFailedException refused) {
        // The library believes this word: it removes the manifests of the commit, and tries again. But the catalog may have
        // taken the first copy of a request and refused a second one that a proxy or a client sent. The table tells.
        if (!happened(base, added, refused)) {
          throw refused;
        }
      }
      made = added.isEmpty() ? -1L : ((Long) added.iterator().next()).longValue();
    }

    private static Set added(TableMetadata metadata) {
      Set added = new HashSet();
      for (int i = 0; i < metadata.changes().size(); i++) {
        Object change = metadata.changes().get(i);
        if (change instanceof MetadataUpdate.AddSnapshot) {
          added.add(Long.valueOf(((MetadataUpdate.AddSnapshot) change).snapshot().snapshotId()));
        }
      }
      return added;
    }

    /** Whether the table has the new snapshot, or a head that took over what it added: then others expired it already. */
    private boolean happened(TableMetadata base, Set added, CommitFailedException refused) {
      if (added.isEmpty()) {
        return false;
      }
      try {
        TableMetadata now = real.refresh();
        Iterator each = added.iterator();
        while (each.hasNext()) {
          if (now.snapshot(((Long) each.next()).longValue()) != null) {
            return true;
          }
        }
        Iterator refs = now.refs().values().iterator();
        while (refs.hasNext()) {
          Snapshot head = now.snapshot(((SnapshotRef) refs.next()).snapshotId());
          if (base != null && base.snapshot(head.snapshotId()) != null) {
            continue; // it is older than the commit
          }
          List manifests = head.allManifests(real.io());
          for (int i = 0; i < manifests.size(); i++) {
            if (added.contains(((ManifestFile) manifests.get(i)).snapshotId())) {
              return true;
            }
          }
        }
        return false;
      } catch (RuntimeException silent) {
        throw new CommitStateUnknownException(refused);
      }
    }

    public TableMetadata current() {
      return real.current();
    }

    public TableMetadata refresh() {
      return real.refresh();
    }

    public FileIO io() {
      return real.io();
    }

    public EncryptionManager encryption() {
      return real.encryption();
    }

    public String metadataFileLocation(String name) {
      return real.metadataFileLocation(name);
    }

    public LocationProvider locationProvider() {
      return real.locationProvider();
    }

    public TableOperations temp(TableMetadata uncommitted) {
      return real.temp(uncommitted);
    }

    public long newSnapshotId() {
      return real.newSnapshotId();
    }

    public boolean requireStrictCleanup() {
      return real.requireStrictCleanup();
    }
  }
}
