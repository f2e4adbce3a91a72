// Watches a commit on its way to the catalog, inside the driver's JVM. Compiled by Janino like
// IcebergBridge.java.
package lakewarden;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.MetadataUpdate;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.exceptions.CleanableFailure;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.exceptions.NotFoundException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

public final class IcebergWatch {
  // Iceberg's HTTP client waits at least this long before it repeats a request. So an answer that arrives
  // sooner belongs to the only copy that the client sent.
  private static final long AT_ONCE_NANOS = 1000000000L;
  private static final Pattern METADATA = Pattern.compile("[^/]+\\.metadata\\.json(\\.gz)?|[^/]+\\.gz\\.metadata\\.json");

  public Watch watch(Table table) {
    return new Watch(table, false);
  }

  /**
   * For library actions that erase the data or delete files they wrote when a commit fails. After a commit was
   * sent, such an action sees no failure that could start the erasing: its files stay until a sweep.
   */
  public Watch watchKeepingFiles(Table table) {
    return new Watch(table, true);
  }

  /**
   * The catalog answered at once with an error (the cause), and the table does not have the commit. To the
   * library its outcome is unknown, because this is the only kind of error after which the library removes
   * nothing. Python decides by the cause.
   */
  public static final class Refused extends CommitStateUnknownException {
    Refused(RuntimeException told) {
      super(told);
    }
  }

  /** The commit was not sent: after it, the library would delete a file that the metadata log names but another table owns. */
  public static final class ForeignLog extends RuntimeException implements CleanableFailure {
    ForeignLog(String file) {
      super("the metadata log names " + file + ", which is not a metadata file of the table in a folder of its own, and the property "
          + TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED + " would delete it: switch that property off");
    }
  }

  /** The operations of one table, which record whether a commit was passed to the catalog. */
  public static final class Watch implements TableOperations {
    private final Table table;
    private final TableOperations real;
    private final boolean keepsFiles;
    private volatile boolean sent = false;
    private volatile long made = -1L;
    // Snapshots (id -> manifest list) of attempts that were reported lost, until one is committed; and the last
    // such answer.
    private final Map doubted = new HashMap();
    private RuntimeException doubt;
    // Folders, spelled as in the table's metadata, in which the library may delete old metadata files.
    private Set folders = Collections.emptySet();

    Watch(Table table, boolean keepsFiles) {
      this.table = table;
      this.keepsFiles = keepsFiles;
      this.real = ((HasTableOperations) table).operations();
    }

    /** The table object through which to commit. */
    public Table table() {
      return table instanceof BaseTable
          ? new BaseTable(this, table.name(), ((BaseTable) table).reporter())
          : new BaseTable(this, table.name());
    }

    public void letDeleteIn(String foldersJson) throws Exception {
      folders = new HashSet((List) new ObjectMapper().readValue(foldersJson, List.class));
    }

    public boolean sent() {
      return sent;
    }

    /** The committed snapshot, even if another tool expired it right after; -1 for none. */
    public long made() {
      return made;
    }

    public void commit(TableMetadata base, TableMetadata metadata) {
      checkLog(base, metadata);
      sent = true;
      Map added = added(metadata);
      long begun = System.nanoTime();
      try {
        real.commit(base, metadata);
      } catch (CommitStateUnknownException unknown) {
        throw unknown; // the library removes nothing
      } catch (RuntimeException told) {
        // The library trusts most errors and then removes the manifests of the commit. But the catalog may have
        // accepted the first copy of a request and refused a second copy that a proxy or a client sent: with a
        // conflict, or because the token had expired. So the table itself is checked.
        boolean atOnce = System.nanoTime() - begun < AT_ONCE_NANOS;
        if (added.isEmpty()) {
          throw told; // no snapshot, so no manifests to lose
        }
        if (!happened(base, added, told)) {
          throw notShown(added, told, atOnce);
        }
      }
      doubted.clear();
      made = added.isEmpty() ? -1L : ((Long) added.keySet().iterator().next()).longValue();
    }

    /** After a commit, the library deletes metadata files that dropped off the metadata log. Every writer to the table can edit
that log. */
    private void checkLog(TableMetadata base, TableMetadata metadata) {
      boolean deletes = base != null
          && (base.propertyAsBoolean(TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, false)
              || metadata.propertyAsBoolean(TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, false));
      if (!deletes || real.getClass().getName().contains(".rest.")) {
        return; // the server of a REST catalog commits and deletes
      }
      Set leaving = new HashSet(base.previousFiles());
      leaving.removeAll(metadata.previousFiles());
      Iterator each = leaving.iterator();
      while (each.hasNext()) {
        String file = ((TableMetadata.MetadataLogEntry) each.next()).file();
        int end = file.lastIndexOf('/');
        boolean here = end > 0 && folders.contains(file.substring(0, end));
        if (!here || !METADATA.matcher(file.substring(end + 1)).matches() || ofAnother(file, base)) {
          throw new ForeignLog(file);
        }
      }
    }

    /** Whether the file is metadata of another table in the same folder. */
    private boolean ofAnother(String file, TableMetadata base) {
      try {
        String uuid = TableMetadataParser.read(real.io(), file).uuid();
        return uuid != null && !uuid.equals(base.uuid());
      } catch (NotFoundException gone) {
        return false;
      }
    }

    /** The error for the library if a commit failed and the table does not show it. */
    private RuntimeException notShown(Map added, RuntimeException told, boolean atOnce) {
      if (told instanceof CommitFailedException && keepsFiles) {
        return new Refused(told); // Python tries again
      }
      if (told instanceof CommitFailedException) {
        // Another commit came first, so no copy of this one can be accepted any more. The library tries again.
        doubted.putAll(added);
        doubt = told;
        return told;
      }
      // A late answer may belong to a repeated request whose first copy has not arrived yet.
      return atOnce ? new Refused(told) : new CommitStateUnknownException(told);
    }

    /** The ids of the snapshots that a commit adds, each with its manifest list. */
    private static Map added(TableMetadata metadata) {
      Map added = new HashMap();
      for (int i = 0; i < metadata.changes().size(); i++) {
        Object change = metadata.changes().get(i);
        if (change instanceof MetadataUpdate.AddSnapshot) {
          Snapshot snapshot = ((MetadataUpdate.AddSnapshot) change).snapshot();
          added.put(Long.valueOf(snapshot.snapshotId()), snapshot.manifestListLocation());
        }
      }
      return added;
    }

    /** Whether the table has the new snapshot, or any snapshot that contains its additions: then another tool already expired it. */
    private boolean happened(TableMetadata base, Map added, RuntimeException told) {
      try {
        TableMetadata now = real.refresh();
        Iterator each = added.entrySet().iterator();
        while (each.hasNext()) {
          Map.Entry entry = (Map.Entry) each.next();
          Snapshot ours = now.snapshot(((Long) entry.getKey()).longValue());
          if (ours != null && !ours.manifestListLocation().equals(entry.getValue())) {
            // An earlier attempt was accepted. Some versions of the library would keep this attempt's files and
            // remove those of the accepted one.
            throw new CommitStateUnknownException(told);
          }
          if (ours != null) {
            return true;
          }
        }
        // Not only the heads: another tool may have rewritten the manifests of a snapshot that still exists.
        Iterator all = now.snapshots().iterator();
        while (all.hasNext()) {
          Snapshot snapshot = (Snapshot) all.next();
          if (base != null && base.snapshot(snapshot.snapshotId()) != null) {
            continue; // it is older than the commit
          }
          List manifests = snapshot.allManifests(real.io());
          for (int i = 0; i < manifests.size(); i++) {
            if (added.containsKey(((ManifestFile) manifests.get(i)).snapshotId())) {
              return true;
            }
          }
        }
        return false;
      } catch (RuntimeException silent) {
        throw new CommitStateUnknownException(told);
      }
    }

    public TableMetadata current() {
      return real.current();
    }

    public TableMetadata refresh() {
      TableMetadata now = real.refresh();
      // The library refreshes before each further attempt. If the table shows an earlier attempt by now, the
      // next attempt would find its own sources missing and remove the manifests of both.
      Iterator each = doubted.keySet().iterator();
      while (each.hasNext()) {
        if (now.snapshot(((Long) each.next()).longValue()) != null) {
          throw new CommitStateUnknownException(doubt);
        }
      }
      return now;
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
