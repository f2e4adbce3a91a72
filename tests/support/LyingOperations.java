// A catalog that commits and then says it did not, once: what a proxy makes of a request that it sent twice.
// Compiled by Janino in the tests' driver, like lakewarden/formats/iceberg/IcebergBridge.java.
package lakewarden.tests;

import org.apache.iceberg.BaseTable;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

public final class LyingOperations implements TableOperations {
  private TableOperations real;
  private int lies = 1;
  private boolean othersExpire = false;

  public Table lying(Table table) {
    real = ((HasTableOperations) table).operations();
    return new BaseTable(this, table.name());
  }

  /** Lie about the next commits; and let somebody else append to the table and expire our snapshot before we hear of it. */
  public void reset(int lies, boolean othersExpire) {
    this.lies = lies;
    this.othersExpire = othersExpire;
  }

  public void commit(TableMetadata base, TableMetadata metadata) {
    real.commit(base, metadata);
    if (lies == 0) {
      return;
    }
    lies--;
    if (othersExpire) {
      long ours = metadata.currentSnapshot().snapshotId();
      Table table = new BaseTable(real, "others");
      table.refresh();
      table.newFastAppend().commit();
      table.expireSnapshots().expireSnapshotId(ours).cleanExpiredFiles(false).commit();
    }
    throw new CommitFailedException(new RuntimeException("409"));
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
}
